"""The sweeper: what is due now goes out now.

It owns every key that recovery does not own, up to a *frontier* about one second ahead of the clock::

        ranges of recovery                    covered (frontier)
    ──┬──────────────┬───────────┬────────────┬───────────────────────────► key = (due ms, delay id)
      │ overdue at   │ delivered │   armed:   │ not looked at yet: in the spill store,
      │ start, tails │           │  the wheel │ found by scan(covered, ...)

`step` does a slice of three things:

1. **Publish** what the network loop has accepted. Scans see it from then on. Messages at or below the frontier are
   armed, because the scan has passed there already.
2. **Deliver** a batch of due messages. They are taken from the wheel into the *hand*, a short list in due order.
   Those that cannot go (the store refuses, the clock was set back) stay at their places in it, so order survives.
3. **Advance the frontier** by a bounded scan: about one second ahead, but never so far that more than `ARMED_MAX`
   are armed. So a second of 500,000 messages is never armed one by one: the frontier stops inside it.

**A hot second.** If more is due than fits into the hand, and most of it in one millisecond, that millisecond is
dropped from hand and wheel and handed to recovery as a key range. The frontier continues behind it. If the messages
are not of one millisecond, everything that is due by now and not in hand is handed over. Dropping takes a few
milliseconds at most, because the wheel is small. So messages that come due next are on time.

**The clock.** `step` is told the wall clock. If that was set back, everything armed for later is forgotten, and the
scan finds it again. "Never early" does not depend on this: the target reads the clock inside its append lock and
refuses messages that are not due.

**Wake-ups.** ``wake_ms`` says until when the sweeper wants to sleep. The loop puts a block into the inbox and *then*
reads ``wake_ms``; the sweeper sets ``wake_ms`` and *then* looks into the inbox. So either the loop sees that it must
ring, or the sweeper sees the block. Nobody is woken for messages that are due later: the sweeper looks often enough.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from broker_plugin.delivery import Deliverer
from broker_plugin.hand import Hand
from broker_plugin.rules.ranges import KEY_MAX, Key, KeyRanges
from broker_plugin.rules.states import State
from broker_plugin.threads.clock import WAIT_MAX_MS, Clock
from broker_plugin.threads.pace import BATCH_MAX, Pace
from store.disk.errors import StoreClosedError, StoreError
from timewheel import TimingWheel
from timewheel.check import problems_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import RLock

    from store.spill.rows.block import Block
    from store.spill.spill_store import SpillStore

__all__ = ["ARMED_MAX", "HAND_MAX", "LOOKAHEAD_MS", "Sweeper"]

LOOKAHEAD_MS = 1000
"""Distance of the frontier ahead of the clock."""
LOOKAHEAD_LOW_MS = 750
"""The frontier is advanced when it is no further ahead than this: a few scans a second, not one per ms."""
ARMED_MAX = 8192
"""Most messages in the wheel, not counting those that were accepted for the next milliseconds."""
HAND_MAX = 1024
"""Most due messages that the sweeper delivers itself; more are a hot second, whose tail is handed over."""
CROWDS_MAX = 4
"""Most crowded milliseconds handed over in one step; after that everything due is handed over."""
PUBLISH_MAX = 4096
"""Records published in one step."""
SCAN_MAX = 512
"""Records of one scan of the frontier."""
INBOX_MAX = 256
"""More blocks than this in the inbox wake the sweeper to publish them."""
SCAN_RETRY_MS = 100
"""Pause after a scan that failed."""
STEP_BACK_MS = 20
"""When the clock goes back by no more than this, the sweeper waits for it instead of arming anew."""


class Sweeper:
    """Arms what comes near and delivers what is due; `step` may be called from any thread, one at a time.

    ``offer`` is for the network loop; everything else takes the delivery lock itself.
    """

    def __init__(
        self,
        spill: SpillStore,
        deliverer: Deliverer,
        ranges: KeyRanges,
        lock: RLock,
        clock: Clock,
        now_ms: int,
        *,
        armed_max: int = ARMED_MAX,
        hand_max: int = HAND_MAX,
        scan_max: int = SCAN_MAX,
        batch_max: int = BATCH_MAX,
    ) -> None:
        self.pace = Pace(batch_max)
        self.ring: Callable[[], None] = lambda: None
        """Wakes the thread that calls `step`."""
        self.ring_recovery: Callable[[], None] = lambda: None
        self.wake_ms = 0
        """Time of the next call of `step`, epoch ms; see "Wake-ups" at the top."""
        self._spill = spill
        self._deliverer = deliverer
        self._ranges = ranges
        self._lock = lock
        self._clock = clock
        self._armed_max = armed_max
        self._scan_max = scan_max
        self._inbox: deque[Block] = deque()
        self._wheel = TimingWheel(now_ms)
        self._hand = Hand(hand_max)
        self._now_ms = now_ms
        self._next_ms: int | None = None
        self._wanted_ms = 0  # when the next step has something to deliver, as of the last one
        self._scan_ms = 0  # no scan before, after one that failed
        self._cover((now_ms - 1, KEY_MAX))

    # ------------------------------------------------------------------------------------------------ network loop

    def offer(self, block: Block, soonest_ms: int) -> None:
        """Take a block that was accepted; its earliest due time decides whether the sweeper is woken.

        Blocks are offered in the order of the journal, and all are published here, in that order: a scan that found a
        later one first would deliver it first.
        """
        # First the inbox, then `wake_ms`: in the other order the sweeper might sleep past this block.
        self._inbox.append(block)
        if soonest_ms < self.wake_ms or len(self._inbox) > INBOX_MAX:
            self.ring()

    # ------------------------------------------------------------------------------------------------ the step

    def step(self, now_ms: int) -> int:
        """Do one slice of work; returns when to call again, epoch ms (now or earlier: at once)."""
        with self._lock:
            if now_ms < self._now_ms - STEP_BACK_MS:
                self._scan_ms = 0
                self._forget_from(now_ms + 1)
                self._ranges.cut(now_ms + 1)
            self._now_ms = now_ms
            # Even while deliveries pause: scans and commands see a block only once it is published.
            self._publish(PUBLISH_MAX)
            if self._deliverer.is_stalled(now_ms):
                wake = self._wanted_ms = min(self._deliverer.stalled_until_ms, now_ms + WAIT_MAX_MS)
            else:
                self._gather(now_ms)
                self._deliver(now_ms)
                wake = self._next_wake(now_ms)
                due = self.next_due_ms
                # Not `wake`: a step that only looks ahead, or publishes, may come late.
                ahead = max(self.frontier_ms, self._scan_ms)
                self._wanted_ms = ahead if due is None else min(due, ahead)
            self.wake_ms = wake  # before the look into the inbox, see `offer`
            if self._inbox:
                wake = self.wake_ms = now_ms
            return wake

    def publish_all(self) -> None:
        """Publish everything that was offered, because a command must find messages that were accepted before it."""
        with self._lock:
            self._publish(KEY_MAX)

    def arm(self, dues: list[int], ids: list[int], refs: list[int]) -> None:
        """Arm records at or below the frontier that are in no range of recovery. Under the delivery lock."""
        covered = self._covered
        if not dues or min(dues) > covered[0]:
            return
        ranges = self._ranges
        insert = self._wheel.insert
        for due_ms, delay_id, ref in zip(dues, ids, refs, strict=True):
            key = (due_ms, delay_id)
            if key <= covered and not (ranges and key in ranges):
                insert(due_ms, ref)
        if len(self._wheel) > self._armed_max:
            self._shrink()

    # ------------------------------------------------------------------------------------------------ parts of it

    def _publish(self, most: int) -> None:
        inbox = self._inbox
        while inbox and most > 0:
            columns = self._spill.publish(inbox.popleft())
            most -= len(columns.refs)
            self.arm(columns.dues, columns.ids, columns.refs)

    def _gather(self, now_ms: int) -> None:
        """Find due messages and take them into the hand; hand the excess over to recovery."""
        for _ in range(CROWDS_MAX):
            self._catch_up(now_ms)
            self._take_in_hand(now_ms)
            if self._hand.room > 0:
                return
            if not self._hand_over_crowd():
                break
        self._hand_over(now_ms)

    def _take_in_hand(self, now_ms: int) -> None:
        """Fill the hand with due messages from the wheel."""
        room = self._hand.room
        if room > 0:
            self._hand.add(*self._wheel.advance(now_ms, room))

    def _hand_over_crowd(self) -> bool:
        """Hand a millisecond to recovery, except its first part, if most of a full hand is due in it.

        So a message due a few milliseconds after a crowd does not belong to it, however late the sweeper is.
        Recovery begins at the start of the crowd, not behind the part that stays in hand: its order is then kept,
        whichever of the two is first.
        """
        crowd_ms = self._hand.drop_crowd()
        if crowd_ms is None:
            return False
        self._give_away(self._drop_armed(crowd_ms, (crowd_ms - 1, KEY_MAX)), crowd_ms)
        return True

    def _hand_over(self, now_ms: int) -> None:
        """Give recovery everything that is due by now and not in hand, if there is anything."""
        after = self._drop_armed(now_ms, self._covered)
        if after < (now_ms, KEY_MAX):
            self._give_away(after, now_ms)

    def _drop_armed(self, until_ms: int, after: Key) -> Key:
        """Forget what is armed up to a time; returns a key below all of it: ``after``, or a lower one."""
        while True:
            dues, _ = self._wheel.advance(until_ms, SCAN_MAX)
            if not dues:
                return after
            after = min(after, (min(dues) - 1, KEY_MAX))

    def _give_away(self, after: Key, until_ms: int) -> None:
        """Give everything behind ``after`` that is due by ``until_ms`` to recovery."""
        self._ranges.add(after, until_ms + 1)
        if self._covered < (until_ms, KEY_MAX):
            self._cover((until_ms, KEY_MAX))
        self._deliverer.stats.handed_over += 1
        self.ring_recovery()

    def _deliver(self, now_ms: int) -> None:
        count = min(self.pace.batch, self._hand.due_by(now_ms))
        if not count:
            return
        dues, refs = self._hand.take(count)
        begin = self._clock.worked_ns()
        # A list, not a range: if a name changes its type within `try`, mypyc knows only the last one in `finally`.
        kept = list(range(count))
        try:
            outcome = self._deliverer.deliver(dues, refs, now_ms, self._deliverer.stats.on_time, state=State.ARMED)
            kept = [*outcome.kept, *range(outcome.looked_at, count)]
        finally:
            if kept:
                self._hand.put_back([dues[at] for at in kept], [refs[at] for at in kept])
        self.pace.worked(count, outcome.looked_at, self._clock.worked_ns() - begin)

    def _catch_up(self, now_ms: int) -> None:
        """Scan for messages that are due by now, as many as fit into the hand; if there are none, for the next ones."""
        if now_ms < self._scan_ms:
            return
        found = 0
        try:
            while self._covered < (now_ms, KEY_MAX) and found < self._hand.most:
                found += self._advance(now_ms)
            if not found and self._covered[0] < now_ms + LOOKAHEAD_LOW_MS and self._has_room:
                self._advance(now_ms)
        except StoreClosedError:
            raise
        except StoreError as error:
            # Messages that are armed already can still be delivered.
            self._scan_ms = now_ms + SCAN_RETRY_MS
            self._deliverer.trouble(f"cannot look for what is due: {error}")

    @property
    def _has_room(self) -> bool:
        return len(self._wheel) <= self._armed_max // 2

    def _advance(self, now_ms: int) -> int:
        """Scan one portion behind the frontier and arm it; returns how many messages that were."""
        until_ms = now_ms + 1 + (LOOKAHEAD_MS if self._has_room else 0)
        found = self._spill.scan(self._covered, until_ms, self._scan_max)
        count = len(found.refs)
        # A full portion may end within a millisecond, so the frontier stops at its last record.
        self._cover((found.dues[-1], found.ids[-1]) if count == self._scan_max else (until_ms - 1, KEY_MAX))
        if count:
            self._wheel.insert_many(found.dues, found.refs)
        return count

    def _cover(self, key: Key) -> None:
        # The spill store first: once a record is armed, the wheel knows it by its ref, and a relocation must know that.
        self._spill.frontier_ms = key[0] + 1
        self._covered: Key = key

    def _shrink(self) -> None:
        """Too many are armed: forget the later half."""
        dues: list[int] = []
        refs: list[int] = []
        while True:
            more_dues, more_refs = self._wheel.advance(KEY_MAX, SCAN_MAX)
            if not more_dues:
                break
            dues += more_dues
            refs += more_refs
        order = sorted(range(len(dues)), key=dues.__getitem__)
        # Later than now: what is due already stays armed, and the hand stays as it is.
        bound_ms = max(dues[order[len(order) // 2]], self._now_ms + 1)
        self._rearm_before(bound_ms, [dues[at] for at in order], [refs[at] for at in order])

    def _forget_from(self, bound_ms: int) -> None:
        """After the clock was set back: leave what is due at or after ``bound_ms`` to the scan again."""
        dues, refs = self._wheel.advance(bound_ms - 1, KEY_MAX)
        self._rearm_before(bound_ms, dues, refs)

    def _rearm_before(self, bound_ms: int, dues: list[int], refs: list[int]) -> None:
        """Arm anew what is due before the bound. The scan begins again there and finds the rest, also of the hand."""
        # A new wheel: the time of this one was advanced beyond the bound, and a wheel never goes back.
        self._wheel = TimingWheel(max(self._now_ms, 0))
        # The hand lies before the bound unless the clock went back by less than `STEP_BACK_MS`.
        self._hand.drop_from(bound_ms)
        if self._covered[0] >= bound_ms:
            self._cover((bound_ms - 1, KEY_MAX))
        for due_ms, ref in zip(dues, refs, strict=True):
            if due_ms < bound_ms:
                self._wheel.insert(due_ms, ref)

    def _next_wake(self, now_ms: int) -> int:
        wake = now_ms + WAIT_MAX_MS
        first = self._hand.first
        if first:
            wake = min(wake, first[0])
        next_ms = self._next_ms = self._wheel.next_wake_ms()
        if next_ms is not None and next_ms < wake:
            wake = next_ms
        # The frontier moves on well before it is reached if the wheel has room, else when messages behind it are due.
        bound_ms = self._covered[0] + 1
        if self._has_room:
            bound_ms -= LOOKAHEAD_LOW_MS
        return min(wake, max(bound_ms, self._scan_ms))

    # ------------------------------------------------------------------------------------------------ figures

    @property
    def frontier_ms(self) -> int:
        """Nothing due at or after this time is armed, epoch ms."""
        return self._covered[0] + 1

    @property
    def armed_count(self) -> int:
        """Messages armed, in wheel and hand."""
        return len(self._wheel) + len(self._hand)

    @property
    def next_due_ms(self) -> int | None:
        """The earliest armed due time as of the last step, epoch ms; None if nothing is armed. Any thread."""
        first = self._hand.first
        return first[0] if first else self._next_ms

    @property
    def behind_ms(self) -> int:
        """Age of the oldest due message in hand, ms, as of the last step. Any thread."""
        first = self._hand.first
        return max(0, self._now_ms - first[0]) if first else 0

    def late_ms(self, now_ms: int) -> int:
        """How long what comes due next, as of the last step, has been due now (epoch ms); negative if it is not.

        What the network loop has offered since that step is not counted. If nothing is due soon, "next" may be up to 60
        ms early: the wheel has to open a slot then. Any thread, no lock.
        """
        return now_ms - self._wanted_ms if self._wanted_ms else 0

    def check(self) -> list[str]:
        """Say what is wrong; empty when nothing is. Under the delivery lock."""
        problems = [f"wheel: {problem}" for problem in problems_of(self._wheel)]
        problems += self._hand.check()
        if self._spill.frontier_ms < self.frontier_ms:
            problems.append(f"frontier {self.frontier_ms}, but the spill store was told {self._spill.frontier_ms}")
        return problems
