"""The caching allocator's rules once more, as slowly and plainly as possible, and lists of events to try them on."""

from __future__ import annotations

from hypothesis import strategies as st

from plafond.memory.allocator import EMPTY_CACHE, MIB, Event, Mode, round_size, segment_size

Blocks = list[list[int | str]]
"""One segment: ``[address, bytes, state]`` in order; a hole has no memory behind it."""

SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 3 * MIB),
    st.integers(9 * MIB, 11 * MIB),
    st.integers(1, 200 * MIB),
)


@st.composite
def event_lists(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = []
    live: dict[int, int] = {}
    for key in range(draw(st.integers(1, 60))):
        size = draw(SIZES)
        events.append((key, size))
        live[key] = size
        while live and draw(st.booleans()):
            dead = draw(st.sampled_from(sorted(live)))
            events.append((dead, -live.pop(dead)))
        if draw(st.integers(0, 19)) == 0:
            events.append(EMPTY_CACHE)
    return events


class Plain:
    """The allocator as lists of blocks; no index, no links."""

    def __init__(self, mode: Mode, ceiling: int | None):
        self.pages = mode == "expandable"
        self.ceiling = ceiling
        self.next = 0
        self.pools: tuple[list[Blocks], ...] = ([], [])
        self.where: dict[int, tuple[Blocks, int]] = {}
        if self.pages:
            for segments in self.pools:
                segments.append([[0, 2**70 * 5, "hole"]])

    def reserved(self) -> int:
        return sum(
            size for pool in self.pools for segment in pool for _, size, state in segment if state != "hole"
        )

    def allocated(self) -> int:
        return sum(
            size for pool in self.pools for segment in pool for _, size, state in segment if state == "used"
        )

    def room_for(self, size: int) -> bool:
        return self.ceiling is None or self.reserved() + size <= self.ceiling

    def tidy(self, segment: Blocks) -> None:
        index = 0
        while index + 1 < len(segment):
            if segment[index][2] == segment[index + 1][2] != "used":
                segment[index][1] += segment.pop(index + 1)[1]
            else:
                index += 1

    def find(self, segments: list[Blocks], size: int) -> tuple[Blocks, int] | None:
        free = []
        for segment in segments:
            for index, (address, have, state) in enumerate(segment):
                if state == "free" and have >= size:
                    behind = segment[index + 1] if index + 1 < len(segment) else [0, 0, ""]
                    grown = have + (behind[1] if behind[2] == "hole" else 0)
                    free.append((have, address, grown, segment, index))
        free.sort(key=lambda each: each[:2])
        if not free:
            return None
        at = 0
        while self.pages and at + 1 < len(free) and free[at + 1][2] < free[at][2]:
            at += 1
        return free[at][3], free[at][4]

    def grow(self, small: bool, size: int) -> bool:
        segments = self.pools[not small]
        if not self.room_for(segment_size(size)):
            return False
        if not self.pages:
            segments.append([[self.next, segment_size(size), "free"]])
            self.next += segment_size(size)
            return True
        (segment,) = segments
        page = (2 if small else 20) * MIB
        for index, (_, _, state) in enumerate(segment):
            if state == "used" or not any(each[2] == "hole" for each in segment[index : index + 2]):
                continue
            missing, at = size, index
            while missing > 0 and segment[at][2] != "used":
                missing -= segment[at][1]
                at += 1
            if missing > 0:
                continue
            missing = size
            while missing > 0:
                address, have, state = segment[index]
                if state == "hole":
                    mapped = -(-min(have, missing) // page) * page
                    if not self.room_for(mapped):
                        self.tidy(segment)
                        return False
                    segment[index : index + 1] = [[address, mapped, "free"]]
                    if mapped < have:
                        segment.insert(index + 1, [address + mapped, have - mapped, "hole"])
                missing -= segment[index][1]
                index += 1
            self.tidy(segment)
            return True
        raise AssertionError

    def release(self) -> None:
        for small, segments in zip((True, False), self.pools, strict=True):
            if not self.pages:
                segments[:] = [s for s in segments if not (len(s) == 1 and s[0][2] == "free")]
                continue
            page = (2 if small else 20) * MIB
            (segment,) = segments
            pieces: Blocks = []
            for address, size, state in segment:
                start, end = -(-address // page) * page, (address + size) // page * page
                if state != "free" or start >= end:
                    pieces.append([address, size, state])
                    continue
                pieces += [[address, start - address, "free"], [start, end - start, "hole"]]
                pieces.append([end, address + size - end, "free"])
            segment[:] = [piece for piece in pieces if piece[1]]
            self.tidy(segment)

    def alloc(self, key: int, size: int) -> bool:
        size = round_size(size)
        small = size <= MIB
        segments = self.pools[not small]
        found = self.find(segments, size)
        if found is None:
            if not self.grow(small, size):
                self.release()
                if not self.grow(small, size):
                    return False
            if self.pages:  # the row that was mapped is the lowest that fits now
                (segment,) = segments
                found = next(
                    (segment, i)
                    for i, (_, have, state) in enumerate(segment)
                    if state == "free" and have >= size
                )
            else:
                found = segments[-1], 0
        segment, index = found
        address, have, _ = segment[index]
        rest = have - size
        if rest >= 512 if small or self.pages else rest > MIB:
            segment.insert(index + 1, [address + size, rest, "free"])
            segment[index][1] = size
        segment[index][2] = "used"
        self.where[key] = (segment, address)
        return True

    def free(self, key: int) -> None:
        segment, address = self.where.pop(key)
        next(block for block in segment if block[0] == address)[2] = "free"
        self.tidy(segment)
