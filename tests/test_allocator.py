"""The caching-allocator replay against sizes worked out by hand, and laws that hold for every list of events."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plafond.memory.allocator import (
    EMPTY_CACHE,
    MIB,
    CachingAllocator,
    Event,
    Mode,
    Reserved,
    replay,
    round_size,
    segment_size,
)
from plain_allocator import Plain, event_lists

MODES: tuple[Mode, ...] = ("default", "expandable")


def in_mib(result: Reserved) -> tuple[float, float]:
    return result.allocated_peak / MIB, result.reserved_peak / MIB


@pytest.mark.parametrize(
    ("size", "rounded"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)]
)
def test_sizes_are_rounded_to_512_bytes(size: int, rounded: int) -> None:
    assert round_size(size) == rounded
    assert replay([(1, size)]).allocated_peak == rounded


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (29 * MIB, 30 * MIB),
    ],
)
def test_segments_of_default_mode(size: int, segment: int) -> None:
    assert segment_size(size) == segment
    assert replay([(1, size)]).reserved_peak == segment


def test_small_requests_share_a_segment() -> None:
    # 4 x 0.5 MiB fill 2 MiB; the fifth opens the next segment
    events = [(i, MIB // 2) for i in range(4)]
    assert in_mib(replay(events)) == (2, 2)
    assert in_mib(replay([*events, (4, 512)])) == (2 + 1 / 2048, 4)


def test_middling_requests_share_20_mib() -> None:
    assert in_mib(replay([(1, 8 * MIB), (2, 8 * MIB), (3, 4 * MIB)])) == (20, 20)
    assert in_mib(replay([(1, 8 * MIB), (2, 8 * MIB), (3, 5 * MIB)])) == (21, 40)


def test_the_pools_do_not_mix() -> None:
    # 19 MiB are free in the large pool, and still 0.5 MiB needs a segment of the small one
    assert in_mib(replay([(1, 2 * MIB), (2, MIB // 2)])) == (2.5, 22)
    assert in_mib(replay([(1, 2 * MIB), (2, MIB // 2)], "expandable")) == (2.5, 22)


def test_a_rest_of_up_to_1_mib_is_not_split_off() -> None:
    # 29.5 MiB in a segment of 30: the rest counts as allocated and serves nobody else
    result = replay([(1, 59 * MIB // 2)])
    assert in_mib(result) == (30, 30)
    assert result.live_peak == 59 * MIB // 2
    # exactly 1 MiB of rest is not split, 1 MiB + 512 bytes are
    assert in_mib(replay([(1, 29 * MIB)])) == (30, 30)
    assert in_mib(replay([(1, 29 * MIB - 512), (2, MIB + 512)])) == (30, 30)


def test_the_small_pool_splits_down_to_512_bytes() -> None:
    assert in_mib(replay([(1, MIB), (2, MIB - 512), (3, 512)])) == (2, 2)


def test_expandable_segments_split_down_to_512_bytes() -> None:
    assert in_mib(replay([(1, 59 * MIB // 2)], "expandable")) == (29.5, 40)


def test_the_smallest_block_that_fits_is_taken() -> None:
    # free: 40 and 24 MiB; 22 MiB must take the 24, so that 38 still finds the 40
    events = [(1, 40 * MIB), (2, 24 * MIB), (1, -40 * MIB), (2, -24 * MIB), (3, 22 * MIB), (4, 38 * MIB)]
    assert replay(events).reserved_peak == 64 * MIB


def test_of_equal_blocks_the_lowest_address_is_taken() -> None:
    allocator = CachingAllocator()
    for key in range(3):
        allocator.alloc(key, 512)
    first, second, _ = sorted(address for address, _, state in allocator.blocks() if state == "used")
    allocator.alloc(3, 512)  # keeps the block of 2 apart from the rest of the segment
    allocator.free(2)
    allocator.free(0)
    allocator.alloc(4, 512)
    used = {address for address, _, state in allocator.blocks() if state == "used"}
    assert {first, second} <= used


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (1, 3, 2), (2, 1, 3)])
def test_free_neighbours_merge(order: tuple[int, ...]) -> None:
    # three blocks fill a 20 MiB segment; freed in any order they must serve 19 MiB without a new one
    events = [(1, 6 * MIB), (2, 6 * MIB), (3, 8 * MIB), *((key, -1) for key in order), (4, 19 * MIB)]
    assert in_mib(replay(events)) == (20, 20)


def test_blocks_of_different_segments_do_not_merge() -> None:
    events = [(1, 12 * MIB), (2, 12 * MIB), (1, -1), (2, -1), (3, 24 * MIB)]
    assert replay(events).reserved_peak == 48 * MIB
    # expandable: the two lie side by side, 24 MiB in pages of 20
    assert replay(events, "expandable").reserved_peak == 40 * MIB


def test_a_used_block_between_keeps_neighbours_apart() -> None:
    events = [(1, 6 * MIB), (2, 2 * MIB), (3, 6 * MIB), (1, -1), (3, -1), (4, 13 * MIB)]
    # after the frees: 6 free, 2 used, 12 free (6 + the rest of 6)
    assert in_mib(replay(events)) == (16, 34)


def test_expandable_pages() -> None:
    assert replay([(1, 512)], "expandable").reserved_peak == 2 * MIB
    assert replay([(1, 2 * MIB)], "expandable").reserved_peak == 20 * MIB
    assert replay([(1, 28 * MIB)], "expandable").reserved_peak == 40 * MIB
    # a free tail is grown, not left behind: 28 + 30 = 58 in three pages
    assert replay([(1, 28 * MIB), (2, 30 * MIB)], "expandable").reserved_peak == 60 * MIB


def test_expandable_keeps_the_end_for_what_must_grow() -> None:
    # free: a hole of 24 MiB and a tail of 16 MiB that can grow; 8 MiB goes into the hole although the tail is smaller
    events = [(1, 24 * MIB), (2, 20 * MIB), (1, -1), (3, 8 * MIB)]
    allocator = CachingAllocator("expandable")
    for key, size in events:
        if size > 0:
            assert allocator.alloc(key, size)
        else:
            allocator.free(key)
    used = sorted((address, size) for address, size, state in allocator.blocks() if state == "used")
    assert used[0][1] == 8 * MIB
    assert allocator.reserved == 60 * MIB


@pytest.mark.parametrize("mode", MODES)
def test_the_cache_is_given_back_before_giving_up(mode: Mode) -> None:
    # 40 MiB cached in a shape that does not fit 60; 100 is the ceiling
    events = [(1, 40 * MIB), (1, -1), (2, 512), (3, 80 * MIB)]
    result = replay(events, mode, ceiling=100 * MIB)
    assert result.oom_at is None
    if mode == "default":
        assert result.retries == 1
        assert result.reserved == 82 * MIB
        assert result.reserved_peak == 82 * MIB
    assert replay(events, mode).reserved_peak == (122 if mode == "default" else 82) * MIB


def test_split_segments_cannot_be_given_back() -> None:
    # 20 MiB segment with 2 MiB in use: default mode is stuck with all of it
    events = [(1, 2 * MIB), (2, 8 * MIB), (2, -1), (3, 82 * MIB)]
    result = replay(events, "default", ceiling=100 * MIB)
    assert result.oom_at == 3
    assert result.reserved == 20 * MIB
    assert result.allocated == 2 * MIB


def test_whole_free_pages_can_be_given_back() -> None:
    # 100 MiB of pages, 2 MiB in use at their end: four pages go back
    events = [(1, 78 * MIB), (2, 2 * MIB), (1, -1), (3, 10 * MIB), EMPTY_CACHE]
    allocator = CachingAllocator("expandable")
    allocator.alloc(1, 79 * MIB)
    allocator.alloc(2, 2 * MIB)
    assert allocator.reserved == 100 * MIB
    allocator.free(1)
    allocator.empty_cache()
    assert allocator.reserved == 40 * MIB
    # and the address space in front of the used block is mapped anew
    allocator.alloc(3, 60 * MIB)
    assert allocator.reserved == 100 * MIB
    # 10 MiB at the front keep their page, 2 MiB further on keep theirs
    assert replay(events, "expandable").reserved == 40 * MIB


def test_out_of_memory_stops_the_replay_at_its_event() -> None:
    events = [(1, 60 * MIB), (2, 60 * MIB), (3, 512)]
    for mode in MODES:
        result = replay(events, mode, ceiling=100 * MIB)
        assert result.oom_at == 1
        assert in_mib(result) == (60, 60)
        assert result.allocated_peak_at == 0
        assert replay(events, mode, ceiling=122 * MIB).oom_at is None


def test_the_cliff_at_1_mib() -> None:
    """Many requests just above 1 MiB take 20 MiB segments, 19 to each, where just below two share 2 MiB."""
    below = replay([(i, MIB) for i in range(38)])
    above = replay([(i, MIB + 512) for i in range(38)])
    assert in_mib(below) == (38, 38)
    assert above.reserved_peak == 40 * MIB


def test_events_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="id 1 is allocated twice"):
        replay([(1, 512), (1, 512)])
    with pytest.raises(ValueError, match="id 2 is freed without being allocated"):
        replay([(2, -512)])
    assert replay([(1, 0)]).reserved_peak == 0


def test_peaks_can_be_counted_per_phase() -> None:
    allocator = CachingAllocator()
    allocator.alloc(1, 100 * MIB)
    allocator.free(1)
    allocator.reset_peaks()
    allocator.alloc(2, 30 * MIB)
    assert allocator.allocated_peak == 30 * MIB
    assert allocator.reserved_peak == 100 * MIB


def training_steps(widths: list[int], steps: int = 2, blocks: int = 24) -> list[Event]:
    """Forward and backward of `blocks` layers per step: what is kept grows with the bucket, and dies in backward."""
    events: list[Event] = []
    key = 0
    for width in widths:
        for _ in range(steps):
            kept = []
            for block in range(blocks):
                for factor in (3, 9, 4, 12):
                    key += 1
                    size = width * (factor * 1024 + 16 * (block % 3))
                    events.append((key, size))
                    kept.append((key, size))
                key += 1
                events += [(key, width * 4096), (key, -width * 4096)]
            while kept:
                old, size = kept.pop()
                key += 1
                events += [(key, size), (old, -size), (key, -size)]
    return events


def test_small_buckets_first_fragment_default_mode() -> None:
    widths = [1024, 1280, 1536, 1792, 2304, 3072, 4096]
    small_first, large_first = training_steps(widths), training_steps(widths[::-1])
    rising, falling = replay(small_first), replay(large_first)
    assert rising.live_peak == falling.live_peak
    assert rising.reserved_peak > 1.1 * falling.reserved_peak
    assert falling.reserved_peak < 1.08 * falling.live_peak
    pages = replay(small_first, "expandable")
    assert pages.reserved_peak < 1.02 * pages.live_peak
    assert pages.reserved_peak < 1.02 * replay(large_first, "expandable").reserved_peak


def check_blocks(allocator: CachingAllocator) -> None:
    """Blocks do not overlap, neighbours are not both free, and their bytes add up to what is reported."""
    blocks = list(allocator.blocks())
    ordered = sorted(blocks)
    for (address, size, state), (behind, _, next_state) in pairwise(ordered):
        assert address + size <= behind
        assert not (address + size == behind and state == next_state == "free")
    assert all(size > 0 and size % 512 == 0 for _, size, _ in blocks)
    assert sum(size for _, size, _ in blocks) == allocator.reserved
    assert sum(size for _, size, state in blocks if state == "used") == allocator.allocated
    assert allocator.reserved >= allocator.allocated >= allocator.live


@settings(max_examples=150, deadline=None)
@given(event_lists(), st.sampled_from(MODES), st.one_of(st.none(), st.integers(20 * MIB, 1000 * MIB)))
def test_laws(events: list[Event], mode: Mode, ceiling: int | None) -> None:
    allocator = CachingAllocator(mode, ceiling)
    live: dict[int, int] = {}
    for event in events:
        key, size = event
        if event == EMPTY_CACHE:
            allocator.empty_cache()
        elif size > 0:
            if not allocator.alloc(key, size):
                break
            live[key] = round_size(size)
        else:
            allocator.free(key)
            del live[key]
        assert allocator.live == sum(live.values())
        assert ceiling is None or allocator.reserved <= ceiling
        check_blocks(allocator)
    for key in live:
        allocator.free(key)
    check_blocks(allocator)
    assert allocator.allocated == allocator.live == 0
    allocator.empty_cache()
    assert allocator.reserved == 0
    assert list(allocator.blocks()) == []


@settings(max_examples=60, deadline=None)
@given(event_lists(), st.sampled_from(MODES))
def test_what_was_reserved_fits_under_a_ceiling_of_that_size(events: list[Event], mode: Mode) -> None:
    free = replay(events, mode)
    assert free.reserved_peak >= free.allocated_peak >= free.live_peak
    if mode == "default":
        assert replay(events, mode, ceiling=free.reserved_peak) == free
    assert replay(events, mode, ceiling=free.live_peak - 512).oom_at is not None


@settings(max_examples=250, deadline=None)
@given(event_lists(), st.sampled_from(MODES), st.one_of(st.none(), st.floats(0, 1)))
def test_the_plain_model_agrees(events: list[Event], mode: Mode, tightness: float | None) -> None:
    ceiling = None
    if tightness is not None:  # between what must fit and what is wanted, where the cache is given back
        wanted = replay(events, mode)
        ceiling = wanted.reserved_peak - int(tightness * (wanted.reserved_peak - wanted.live_peak))
    fast, plain = CachingAllocator(mode, ceiling), Plain(mode, ceiling)
    for event in events:
        key, size = event
        if event == EMPTY_CACHE:
            fast.empty_cache()
            plain.release()
        elif size > 0:
            served = fast.alloc(key, size)
            assert served == plain.alloc(key, size)
            if not served:
                break
        else:
            fast.free(key)
            plain.free(key)
        assert (fast.reserved, fast.allocated) == (plain.reserved(), plain.allocated())
