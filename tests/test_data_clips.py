"""Clips: what their headers say, which frames are taken, and what is said of those that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from micro_clips import make_clip
from plafond.data.batches import BatchPlan, build_items
from plafond.data.buckets import Bucket
from plafond.data.clips import Clip, read_frames, read_header, take_frames
from plafond.data.folder import Scan, scan
from plafond.data.latents import cache_latents
from plafond.errors import DataError
from plafond.job.dataset import DatasetConfig


def by_fours(count: int) -> int:
    """As Wan takes them."""
    return max(0, count - 1) // 4 * 4 + 1


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips in several containers, of 21 frames at 8 a second, and one picture."""
    folder = tmp_path_factory.mktemp("clips")
    for name in ("a.mp4", "b.webm", "c.mkv", "d.gif"):
        make_clip(folder / name)
        (folder / name).with_suffix(".txt").write_text(f"clip {name}")
    make_clip(folder / "e.mov", turned=90)
    Image.new("RGB", (64, 48), (0, 99, 0)).save(folder / "f.png")
    return folder


def scanned(folder: Path, **keys: Any) -> Scan:
    return take_frames(scan(DatasetConfig(folder_path=str(folder), **keys)), by_fours)


def test_headers(clips: Path) -> None:
    for name in ("a.mp4", "b.webm", "c.mkv", "d.gif"):
        width, height, clip = read_header(clips / name)
        assert (width, height, clip.count) == (64, 48, 21), name
        assert clip.rate == pytest.approx(8, rel=0.05), name
    assert read_header(clips / "e.mov")[:2] == (48, 64), "as a player shows it"


def test_frames_are_the_right_ones_and_upright(clips: Path) -> None:
    """Each frame of these clips has its number in its red, left half."""
    for name in ("a.mp4", "b.webm", "c.mkv", "d.gif"):
        images = list(read_frames(clips / name, (0, 7, 7, 20)))
        assert [image.size for image in images] == [(64, 48)] * 4
        found = [np.asarray(image)[24:, :24, 0].mean() / 12 for image in images]
        assert np.allclose(found, [0, 7, 7, 20], atol=1.5), (name, found)
    (turned,) = read_frames(clips / "e.mov", (20,))
    red = np.asarray(turned)[:, :, 0]
    assert turned.size == (48, 64)
    # a quarter turn against the clock: what was left is below
    assert red[40:].mean() > 200 > 60 > red[:24].mean()


@pytest.mark.parametrize(
    ("keys", "frames"),
    [
        ({"num_frames": 5}, (0, 5, 10, 15, 20)),
        ({"num_frames": 7}, (0, 5, 10, 15, 20)),
        ({"num_frames": 5, "shrink_video_to_frames": False, "fps": 8}, None),
        ({"auto_frame_count": True, "fps": 8}, tuple(range(21))),
        ({"auto_frame_count": True, "fps": 4}, (0, 2, 4, 6, 8, 10, 12, 14, 16)),
        (
            {"auto_frame_count": True, "fps": 4, "trim_auto_frame_count_tail": False},
            (0, 2, 5, 8, 10, 12, 15, 18, 20),
        ),
    ],
)
def test_which_frames_are_taken(clips: Path, keys: dict[str, Any], frames: tuple[int, ...] | None) -> None:
    found = {picture.name: picture for picture in scanned(clips, **keys).pictures}
    taken = found["a.mp4"].frames
    if frames is None:
        starts = {picture.frames[0] for picture in found.values() if picture.frames}
        assert all(
            picture.frames == tuple(range(picture.frames[0], picture.frames[0] + 5))
            for picture in found.values()
            if picture.frames
        )
        assert len(starts) > 1, "drawn for each clip"
        assert taken == scanned(clips, **keys).pictures[0].frames, "and the same each time"
    else:
        assert taken == frames
    assert found["f.png"].frames == () and found["f.png"].clip is None


def test_frames_are_part_of_the_bucket(clips: Path) -> None:
    config = {"num_frames": 5, "resolution": (64,)}
    items = build_items([scanned(clips, **config)], 16)
    assert {str(item.bucket) for item in items} == {"64x48x5f", "48x64x5f", "64x48"}
    assert Bucket(64, 48, 5).pixels == 5 * 64 * 48
    plan = BatchPlan(items, 2, 0)
    assert all(len({item.bucket for item in plan.batch_at(index).items}) == 1 for index in range(4))
    assert str(plan.largest_bucket()) == "64x48x5f" or str(plan.largest_bucket()) == "48x64x5f"
    assert str(plan.tour()[0].bucket).endswith("x5f")


def test_latents_of_clips(clips: Path, tmp_path: Path) -> None:
    """Pixels come with a dimension for frames; another choice of frames is another latent."""
    seen: list[torch.Size] = []

    def encode(pixels: torch.Tensor) -> torch.Tensor:
        seen.append(pixels.shape)
        return pixels.mean(dim=(-1, -2))

    def cached(**keys: Any) -> tuple[list[Any], Any]:
        items = build_items([scanned(clips, resolution=(64,), **keys)], 16)
        return items, cache_latents(items, encode, signature={"vae": "x"}, to_disk=True, folder=tmp_path)

    items, store = cached(num_frames=5)
    assert {tuple(shape) for shape in seen} == {(1, 3, 5, 48, 64), (1, 3, 5, 64, 48), (1, 3, 48, 64)}
    first = store[items[0]]
    red = (first[0] + 1) / 2 * 255
    assert torch.allclose(red.diff(), torch.tensor(30.0), atol=8), "frames 0, 5, 10, 15, 20 in their order"
    count = len(seen)
    cached(num_frames=5)
    assert len(seen) == count, "nothing is encoded twice"
    cached(num_frames=9)
    assert len(seen) == count + 5, "all clips, and the picture is still known"


def test_what_cannot_be_used_is_named(clips: Path, tmp_path: Path) -> None:
    make_clip(tmp_path / "good.mp4")
    make_clip(tmp_path / "short.mp4", count=7)
    data = (clips / "a.mp4").read_bytes()
    (tmp_path / "broken.mp4").write_bytes(data[: len(data) // 2])
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mkv").write_text("hello")
    found = scanned(tmp_path, num_frames=9)
    assert [picture.name for picture in found.pictures] == ["good.mp4"]
    said = {text.partition(": ")[0].rpartition("/")[2]: text for text in map(str, found.problems)}
    assert said["short.mp4"].endswith(
        ": 7 frames; expected at least 9, as num_frames says, or auto_frame_count: true, which takes clips at their"
        " own lengths."
    )
    assert (
        ": the clip is broken or cut off (Invalid data found when processing input); " in said["broken.mp4"]
    )
    assert said["empty.mp4"].endswith(": the file is empty (0 bytes); expected a clip.")
    assert "broken or cut off" in said["text.mkv"]
    for name in ("good.mp4", "short.mp4"):
        (tmp_path / name).unlink()
    make_clip(tmp_path / "short.mp4", count=7)
    with pytest.raises(DataError) as error:
        scanned(tmp_path, num_frames=9)
    assert "nothing is left to train on (" in str(error.value)


def test_a_clip_that_ends_early_is_named(clips: Path, tmp_path: Path) -> None:
    """Its header is whole, its frames are not."""
    path = tmp_path / "cut.webm"
    make_clip(path, count=60, size=(128, 96))
    data = path.read_bytes()
    items = build_items([scanned(tmp_path, num_frames=21, resolution=(64,))], 16)
    path.write_bytes(data[: len(data) * 2 // 3])
    store = cache_latents(items, lambda pixels: pixels, signature={}, to_disk=False)
    (problem,) = map(str, store.problems)
    assert problem.startswith(f"{path}: the clip ends after ") and "frame 60 is to be trained on" in problem


def test_clips_in_a_data_set_of_pictures(clips: Path) -> None:
    found = scanned(clips)
    assert [picture.name for picture in found.pictures] == ["d.gif", "f.png"], "a GIF is a picture, too"
    (problem,) = [sentence for sentence in map(str, found.problems) if "left out" in sentence]
    assert (
        problem == f"{clips}: 4 clips are left out (for instance a.mp4); num_frames above 1 trains on clips."
    )
    with pytest.raises(DataError) as error:
        take_frames(scan(DatasetConfig(folder_path=str(clips / "a.mp4"))), by_fours)
    assert "expected a folder of pictures" in str(error.value)
    # a model of pictures alone
    one = take_frames(scan(DatasetConfig(folder_path=str(clips), num_frames=5)), lambda count: 1)
    assert [picture.name for picture in one.pictures] == ["f.png"]
    assert str(one.problems[0]).endswith(
        "a.mp4: a clip; expected pictures for this model and these settings."
    )


def test_seconds() -> None:
    assert Clip(81, 16).seconds == pytest.approx(5.0625)
