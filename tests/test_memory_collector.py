"""A dry run and Python's garbage collector."""

from __future__ import annotations

import gc
import weakref

import torch

from plafond.memory.collector import paused
from plafond.memory.kernels import Target
from plafond.memory.meta import MetaLedger
from plafond.memory.residence import counting


def test_the_collector_is_as_it_was_afterwards() -> None:
    assert gc.isenabled()
    with paused():
        assert not gc.isenabled()
        with paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_dies_after_the_end_is_no_part_of_the_trace() -> None:
    with counting(MetaLedger(Target("cuda"))) as ledger:
        tensor = torch.empty(1000, device="meta")
        ledger.finish()
        del tensor
    assert [event.allocates for event in ledger.trace.events] == [True]


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_goes_with_the_next_full_collection() -> None:
    with paused():
        aside = gc.get_freeze_count()
        assert aside > 10_000, "what is imported is passed over"
        ring = weakref.ref(Ring())
    assert gc.get_freeze_count() <= aside
    gc.collect()
    assert ring() is None
