"""Rehearsals: what they share, and what they must not pass on."""

from __future__ import annotations

import plafond
from conftest import JobMaker
from plafond.data.buckets import Bucket
from plafond.families import family_for
from plafond.memory.dryrun import Rehearsal, _parts
from plafond.memory.kernels import Target


def rehearsal(make_job: JobMaker, **sections: dict[str, object]) -> Rehearsal:
    (process,) = plafond.load_job(make_job(**sections)).processes
    family = family_for(process.model.arch)
    return Rehearsal(process, family, family.locate(process.model), Target())


def test_phases_do_not_depend_on_those_before_them(make_job: JobMaker) -> None:
    live = {"cache_text_embeddings": False, "disable_sampling": False}
    alone = {}
    for name in ("cache_latents", "train", "preview"):
        _parts.clear()
        one = rehearsal(make_job, train=live)
        alone[name] = one.phase(name, Bucket(96, 64), 2, one.process.sample.samples[0])
    _parts.clear()
    together = rehearsal(make_job, train=live)
    for name in ("preview", "train", "cache_latents", "preview"):
        found = together.phase(name, Bucket(96, 64), 2, together.process.sample.samples[0])
        assert found == alone[name], name
