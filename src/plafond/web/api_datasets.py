"""The REST API of data sets: folders of pictures, their captions, uploads."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi import Path as InPath
from fastapi.responses import FileResponse, Response

from plafond.web.datasets import Listed
from plafond.web.models import (
    REFUSALS,
    Caption,
    DatasetDetail,
    DatasetInfo,
    NewDataset,
    PictureInfo,
    Replaced,
    Replacement,
    Resolution,
    TakenInfo,
)
from plafond.web.site import Site
from plafond.web.thumbnails import thumbnail
from plafond.web.uploads import receive
from plafond.web.words import words

Name = Annotated[str, InPath(max_length=200)]
Language = Annotated[str, Query(pattern="^(en|fr)$", description="Of what is said of files, errors too.")]
File = Annotated[str, InPath(max_length=2000)]

MOST_PICTURES = 500
"""Pictures of one answer; there may be thousands in a folder."""


def router(site: Site) -> APIRouter:
    """The routes below ``/api/datasets``."""
    api = APIRouter(prefix="/api/datasets", responses=REFUSALS, tags=["datasets"])
    datasets = site.datasets

    @api.get("")
    def list_datasets() -> list[DatasetInfo]:
        """Every data set."""
        return [
            DatasetInfo(name=name, pictures=datasets.count(name), cover=datasets.first(name))
            for name in datasets.names()
        ]

    @api.post("", status_code=201)
    def create_dataset(body: NewDataset) -> DatasetInfo:
        """Make an empty data set."""
        return DatasetInfo(name=datasets.create(body.name).name, pictures=0, cover=None)

    @api.get("/{name}")
    def get_dataset(
        name: Name,
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_PICTURES)] = MOST_PICTURES,
    ) -> DatasetDetail:
        """What a data set holds, with captions, a page at a time; and what in it cannot be used."""
        return _detail(datasets.listed(name), offset, limit)

    @api.delete("/{name}", status_code=204)
    def delete_dataset(name: Name) -> Response:
        """Delete a data set with everything in it."""
        datasets.delete(name)
        return Response(status_code=204)

    @api.get("/{name}/buckets")
    def get_buckets(
        name: Name,
        resolution: Annotated[list[Resolution], Query(min_length=1, max_length=16)],
        divisor: Annotated[int, Query(ge=1, le=256, description="Sides are multiples of this.")] = 32,
    ) -> dict[int, dict[str, int]]:
        """How many pictures go into each bucket, for each resolution; the fullest first."""
        return datasets.buckets(name, resolution, divisor)

    @api.put("/{name}/files/{file}", status_code=201)
    async def upload(
        name: Name, file: Name, request: Request, replace: bool = False, language: Language = "en"
    ) -> TakenInfo:
        """Add a picture, caption, clip or .zip of these; the request's body is the file itself."""
        taken = await receive(datasets.folder(name), file, request.stream(), replace=replace)
        refused = [words(language).said(sentence) for sentence in taken.refused]
        return TakenInfo(added=taken.added, same=taken.same, refused=refused)

    @api.get("/{name}/files/{file:path}", response_class=FileResponse)
    def get_picture(name: Name, file: File) -> FileResponse:
        """A picture or clip as it is."""
        return FileResponse(datasets.file(name, file))

    @api.delete("/{name}/files/{file:path}", status_code=204)
    def delete_picture(name: Name, file: File) -> Response:
        """Delete a picture or clip with its caption."""
        datasets.remove(name, file)
        return Response(status_code=204)

    @api.get("/{name}/thumbnails/{file:path}", response_class=FileResponse)
    def get_thumbnail(name: Name, file: File) -> FileResponse:
        """A small copy of a picture."""
        path = thumbnail(site.home, datasets.file(name, file))
        return FileResponse(path, headers={"cache-control": "private, max-age=60"})

    @api.put("/{name}/captions/{file:path}")
    def write_caption(name: Name, file: File, body: Caption) -> Caption:
        """Write the caption of a picture beside it; an empty one deletes it."""
        return Caption(caption=datasets.caption(name, file, body.caption))

    @api.post("/{name}/replace")
    def replace_in_captions(name: Name, body: Replacement) -> Replaced:
        """Replace a text in all captions."""
        changed = datasets.replace(name, body.find, body.replace, case=body.case, try_only=body.try_only)
        return Replaced(captions=dict(changed))

    return api


def _detail(found: Listed, offset: int, limit: int) -> DatasetDetail:
    pictures = [
        PictureInfo(
            name=picture.name,
            width=picture.width,
            height=picture.height,
            caption=picture.caption,
            caption_file=None if picture.caption_file is None else picture.caption_file.name,
        )
        for picture in found.pictures[offset : offset + limit]
    ]
    return DatasetDetail(
        name=found.name,
        total=len(found.pictures),
        pictures=pictures,
        videos=list(found.videos),
        problems=list(map(str, found.problems)),
        notes=list(map(str, found.notes)),
    )
