"""Who reads the log learns that deliveries are late, how late, and when they are on time again."""

from __future__ import annotations

from pathlib import Path
from threading import RLock
from types import SimpleNamespace

import pytest

from broker_plugin.behind import TELL_MS, Behind
from broker_plugin.rules.ranges import KEY_MAX, KeyRanges
from tests.broker_plugin.test_plugin import Host, wall_ms

NOW = 1_700_000_000_000
LATER = NOW + 50_000
LINE = (
    ": more comes due than is delivered. If this process uses a whole processor, spread the load over more shards or "
    "brokers (docs/operations.md, Load)"
)


class Seen:
    """A `Behind` over a sweeper and a store that the test sets."""

    def __init__(self) -> None:
        self.sweeper = SimpleNamespace(behind_ms=0)
        self.deliverer = SimpleNamespace(is_refused=False)
        self.ranges = KeyRanges()
        self.lines: list[str] = []
        self.behind = Behind(self.sweeper, self.deliverer, self.ranges, RLock(), self.lines.append)  # type: ignore[arg-type]
        self.behind.look(NOW)

    def look(self, now_ms: int = LATER) -> list[str]:
        """Look; the new lines."""
        before = len(self.lines)
        self.behind.look(now_ms)
        return self.lines[before:]

    def sweeper_is(self, behind_ms: int) -> list[str]:
        """Look while the oldest message in hand is so late."""
        self.sweeper.behind_ms = behind_ms
        return self.look()


def test_the_line_comes_again_only_when_it_is_twice_as_late() -> None:
    seen = Seen()
    assert seen.sweeper_is(0) == seen.sweeper_is(TELL_MS - 1) == []
    (line,) = seen.sweeper_is(TELL_MS)
    assert line.startswith("deliveries are 5 s late: more comes due than is delivered.")
    assert seen.sweeper_is(2 * TELL_MS - 1) == []
    (line,) = seen.sweeper_is(2 * TELL_MS)
    assert line.startswith("deliveries are 10 s late")


def test_being_on_time_again_is_told_once_and_then_it_begins_anew() -> None:
    seen = Seen()
    seen.sweeper_is(12_000)
    assert seen.sweeper_is(1_000) == []  # not yet
    assert seen.sweeper_is(999) == ["deliveries are on time again; they were more than 12 s late"]
    assert seen.sweeper_is(0) == []
    (line,) = seen.sweeper_is(TELL_MS)
    assert line.startswith("deliveries are 5 s late")


def test_what_was_handed_to_recovery_counts_by_how_far_that_has_got() -> None:
    seen = Seen()
    seen.ranges.add((NOW + 1_000, KEY_MAX), NOW + 9_000)
    assert seen.look(NOW + 5_999) == []
    (line,) = seen.look(NOW + 6_000)
    assert line.startswith("deliveries are 5 s late")
    next(iter(seen.ranges)).after = (NOW + 5_500, 7)
    assert seen.look(NOW + 6_400) == ["deliveries are on time again; they were more than 5 s late"]


def test_what_was_overdue_at_the_start_does_not_count_even_if_later_ranges_are_joined_to_it() -> None:
    seen = Seen()
    seen.ranges.add((-1, 0), NOW)
    assert seen.look(NOW + 9_000) == []
    for number in range(40):
        seen.ranges.add((NOW + 8 + 20 * number, KEY_MAX), NOW + 20 * (number + 1))
    seen.ranges.add((NOW + 5_000, 0), NOW + 5_100)
    seen.sweeper.behind_ms = 9_001  # accepted when it was overdue already
    assert seen.look(NOW + 9_000) == ["deliveries are 9 s late" + LINE]
    while next(iter(seen.ranges)).until_ms < NOW + 4_000:
        seen.ranges.remove(next(iter(seen.ranges)))
    assert seen.look(NOW + 9_100) == []
    assert seen.look(NOW + 23_000) == ["deliveries are 18 s late" + LINE]


def test_what_came_due_while_the_store_refused_does_not_count() -> None:
    seen = Seen()
    assert seen.sweeper_is(20_000)
    seen.deliverer.is_refused = True
    assert seen.sweeper_is(60_000) == []
    seen.deliverer.is_refused = False
    assert seen.look() == []
    seen.sweeper.behind_ms = TELL_MS
    assert seen.look(LATER + TELL_MS) == ["deliveries are 5 s late" + LINE]


@pytest.mark.parametrize("jump_ms", [61_000, -1])
def test_nor_what_came_due_while_the_process_stood_still_or_the_clock_was_set(jump_ms: int) -> None:
    seen = Seen()
    assert seen.look() == []
    seen.sweeper.behind_ms = 30_000
    assert seen.look(LATER + jump_ms) == []
    assert seen.look(LATER + jump_ms + 10_000) == []
    assert seen.look(LATER + jump_ms + 30_000) == ["deliveries are 30 s late" + LINE]


def test_the_spiller_looks_when_it_has_nothing_else_to_do(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.plugin.open(host.context)
    now_ms = wall_ms()
    host.plugin.behind.look(now_ms)
    host.plugin.ranges.add((now_ms + 1_000, 0), now_ms + 60_000)
    while host.plugin.spiller.step(now_ms + 31_000) <= now_ms + 31_000:
        pass
    host.close()
    (line,) = host.warnings
    assert line.startswith("deliveries are 30 s late")
