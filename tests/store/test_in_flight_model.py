"""What is in flight against a plain model: a dictionary of messages, each with its handle and its time.

Batches stand as rows or as objects (`store.pop.packed`), and go from one to the other: nobody sees which.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from store.pop.in_flight import InFlight
from store.pop.listing import Listing
from store.pop.notes import Notes
from store.pop.packed import PACKED_MAX
from store.pop.pop_queue import Batch, PopQueue
from store.pop.rows import BatchRow, read_rows
from tests.support.examples import examples

QUEUES = 2
HELD, CLAIMED, COPIED = range(3)
TIMES = st.sampled_from([0, 1, 5, 300, 60_000])
PLACES = st.integers(-6, -1) | st.integers(0, 5_000)
"""Of a handle: one of the last, or any."""
WHICH = st.integers(0, QUEUES - 1)
Message = tuple[int, int, int, int]
"""Start and pop time of its handle, when its time is over, and its state."""


class InFlightMachine(RuleBasedStateMachine):
    """Two queues, handles of now and of before, and a reviver that copies, puts back and settles."""

    def __init__(self) -> None:
        super().__init__()
        self.flight, self.now_ms = InFlight(0), 1_000
        self.flight.notes = Notes()
        self.queues = [self.opened(number) for number in range(QUEUES)]
        self.known: list[dict[int, Message]] = [{} for _ in range(QUEUES)]
        self.handles: list[tuple[int, int, int, int]] = []
        self.claimed: list[Batch] = []
        self.copies: list[Batch] = []
        self.back: dict[tuple[int, int], int] = {}  # messages that were put back, and when they are due again

    def opened(self, number: int) -> PopQueue:
        queue = self.flight.open("G", "T", number, 7)
        assert queue is not None
        return queue

    # ------------------------------------------------------------------------------------------------ pops

    @rule(which=WHICH, offsets=st.sets(st.integers(0, 9), max_size=10), far=st.booleans(), invisible_ms=TIMES)
    def pop(self, which: int, offsets: set[int], far: bool, invisible_ms: int) -> None:
        """One pop gets messages; with a filter they may stand far from each other."""
        queue = self.queues[which]
        start = queue.next
        got = sorted(start + place * (9 if far else 1) for place in offsets)
        self.flight.record(queue, start, got, self.now_ms, invisible_ms, start + 91)
        self.got(which, start, got, invisible_ms)

    @rule(which=WHICH, count=st.sampled_from([1, 3, PACKED_MAX, 2 * PACKED_MAX + 5]), invisible_ms=TIMES)
    def pop_each(self, which: int, count: int, invisible_ms: int) -> None:
        """Many pops get a message each."""
        queue = self.queues[which]
        for number in range(count):
            start, spread = queue.next, invisible_ms + number % 7
            self.flight.record(queue, start, (start,), self.now_ms, spread, start + 1)
            self.got(which, start, [start], spread)

    def got(self, which: int, start: int, offsets: list[int], invisible_ms: int) -> None:
        for offset in offsets:
            self.known[which][offset] = start, self.now_ms, self.now_ms + invisible_ms, HELD
            self.handles.append((which, start, self.now_ms, offset))

    def handle(self, place: int) -> tuple[int, int, int, int]:
        return self.handles[place % len(self.handles)]

    def holds(self, which: int, start: int, pop_ms: int, offset: int) -> bool:
        known = self.known[which].get(offset)
        return known is not None and known[:2] == (start, pop_ms) and known[3] == HELD

    @rule(place=PLACES, bits=st.sampled_from([1, -1, 0b101, 1 << 80]))
    def ack(self, place: int, bits: int) -> None:
        if self.handles:
            self.acked(*self.handle(place)[:3], bits)

    @rule(
        begin=st.integers(-300, 300),
        count=st.sampled_from([30, PACKED_MAX, 2 * PACKED_MAX]),
        step=st.sampled_from([1, 1, 2, 5]),
    )
    def ack_many(self, begin: int, count: int, step: int) -> None:
        if self.handles:
            for place in range(begin, begin + count, step):
                which, start, pop_ms, offset = self.handle(place)
                self.acked(which, start, pop_ms, 1 << (offset - start))

    def acked(self, which: int, start: int, pop_ms: int, bits: int) -> None:
        known = self.known[which]
        own = [
            at for at in range(start, start + 91) if bits >> (at - start) & 1 and self.holds(which, start, pop_ms, at)
        ]
        assert self.flight.ack(self.queues[which], start, pop_ms, bits) == len(own)
        for offset in own:
            del known[offset]

    @rule(place=PLACES, invisible_ms=TIMES, beside=st.sampled_from([0, 0, 0, 1, -1, 1 << 50]))
    def change(self, place: int, invisible_ms: int, beside: int) -> None:
        if not self.handles:
            return
        which, start, pop_ms, offset = self.handle(place)
        offset += beside
        valid = self.holds(which, start, pop_ms, offset)
        changed = self.flight.change(self.queues[which], start, pop_ms, offset, invisible_ms, self.now_ms)
        assert (changed is not None) == valid
        if changed is not None:
            assert (changed.start, changed.due_ms) == (offset, changed.pop_ms + invisible_ms)
            assert (which, offset, changed.pop_ms, offset) not in self.handles, "a handle was given again"
            self.known[which][offset] = offset, changed.pop_ms, changed.due_ms, HELD
            self.handles.append((which, offset, changed.pop_ms, offset))

    # ------------------------------------------------------------------------------------------------ what is due

    @rule(ms=st.sampled_from([1, 4, 250, 60_000]))
    def passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(count=st.sampled_from([1, 128, 100_000]))
    def claim(self, count: int) -> None:
        batches, unblocked = self.flight.claim(self.now_ms, count)
        assert not unblocked
        for batch in batches:
            which = batch.queue.queue_id
            for offset in batch.offsets():
                start, pop_ms, due_ms, state = self.known[which][offset]
                assert (start, pop_ms, due_ms, state) == (batch.start, batch.pop_ms, batch.due_ms, HELD)
                assert due_ms <= self.now_ms, "too early"
                self.known[which][offset] = start, pop_ms, due_ms, CLAIMED
        self.claimed += batches

    @rule()
    def claim_all(self) -> None:
        """Nothing that is due is forgotten, in whatever it stands."""
        for _ in range(200):
            self.claim(100_000)
            due_ms = self.flight.next_due_ms()
            if due_ms is None or due_ms > self.now_ms:
                break
        for which, known in enumerate(self.known):
            for offset, (_, _, due_ms, state) in known.items():
                later = self.back.get((which, offset), due_ms)
                assert state != HELD or max(due_ms, later) > self.now_ms, "what is due did not come"

    @rule(bits=st.sampled_from([-1, 0b1, 0b110, 0]), again=st.booleans())
    def copy(self, bits: int, again: bool) -> None:
        """Copies of some messages of each claimed batch are put; the others are due again, or are gone."""
        claimed, self.claimed = self.claimed, []
        for batch in claimed:
            known, taken = self.known[batch.queue.queue_id], batch.waiting & bits
            offsets = [*batch.offsets()]
            if taken:
                self.copies.append(self.flight.copied(batch, taken))
            if again:
                self.flight.put_back(batch, self.now_ms + 5)
            else:
                self.flight.settle(batch)
            for offset in offsets:
                start, pop_ms, due_ms, _ = known[offset]
                if taken >> (offset - start) & 1:
                    known[offset] = start, pop_ms, due_ms, COPIED
                elif again:
                    known[offset] = start, pop_ms, due_ms, HELD
                    self.back[batch.queue.queue_id, offset] = self.now_ms + 5
                else:
                    del known[offset]

    @rule()
    def durable(self) -> None:
        for batch in self.copies:
            for offset in batch.offsets():
                del self.known[batch.queue.queue_id][offset]
            self.flight.settle(batch)
        self.copies.clear()

    # ------------------------------------------------------------------------------------------------ others

    @rule(which=WHICH)
    def restart(self, which: int) -> None:
        queue = self.queues[which]
        self.flight.restart(queue, queue.next + 1)
        self.lost(which)

    @rule(which=WHICH)
    def start_again(self, which: int) -> None:
        """A start makes anew what the journal says: each message that is not done with, under its old handle."""
        flight = InFlight(self.now_ms)
        flight.notes = Notes()
        flight.number = self.flight.number
        for queue in self.queues:
            made = flight.open("G", "T", queue.queue_id, queue.next)
            assert made is not None
            rows = sorted(queue.rows(), key=lambda row: row[1 if which else 0])
            for name in dict.fromkeys(row[0] for row in rows):
                own = [row for row in rows if row[0] == name]
                bits = sum(row[2] for row in own)
                flight.restored(made, name, own[0][1], bits, own[0][3], own[0][4])
            self.queues[queue.queue_id] = made
        self.flight = flight
        self.back.clear()
        self.claimed.clear()
        self.copies.clear()
        for known in self.known:
            known.update({offset: (*one[:3], HELD) for offset, one in known.items()})

    def lost(self, which: int) -> None:
        self.known[which].clear()
        self.handles = [one for one in self.handles if one[0] != which]
        self.claimed = [one for one in self.claimed if one.queue.queue_id != which]
        self.copies = [one for one in self.copies if one.queue.queue_id != which]

    @invariant()
    def says_what_is_known(self) -> None:
        assert self.flight.check() == []
        for queue, known in zip(self.queues, self.known, strict=True):
            assert sorted(queue.in_flight()) == sorted(known)
            assert queue.committed() == min([queue.next, *known])
            assert queue.count == len(known)
        held = [one[2] for known in self.known for one in known.values() if one[3] == HELD]
        wake_ms = self.flight.next_due_ms()
        assert not held or (wake_ms is not None and wake_ms <= max(min(held), self.now_ms) + 5)

    @invariant()
    def a_listing_says_it_too(self) -> None:
        listing, rows = Listing(self.queues), list[bytes]()
        while listing:
            rows += listing.rows(3)
        said = [row for row in read_rows(b"".join(rows)) if isinstance(row, BatchRow)]
        bits = {(row.ref, row.start + at) for row in said for at in range(row.bits.bit_length()) if row.bits >> at & 1}
        assert bits == {(q.ref, offset) for q, known in zip(self.queues, self.known, strict=True) for offset in known}


TestInFlight = InFlightMachine.TestCase
TestInFlight.settings = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
