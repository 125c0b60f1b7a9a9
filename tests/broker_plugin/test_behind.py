"""Who reads the log learns that deliveries are late, how late, and when they are on time again."""

from __future__ import annotations

from pathlib import Path
from threading import RLock
from types import SimpleNamespace

from broker_plugin.behind import BEHIND_MS, Behind
from broker_plugin.rules.ranges import KEY_MAX, KeyRanges
from tests.broker_plugin.test_plugin import Host, wall_ms

NOW = 1_700_000_000_000


class Seen:
    """A `Behind` over a sweeper and a store that the test sets."""

    def __init__(self) -> None:
        self.sweeper = SimpleNamespace(behind_ms=0)
        self.deliverer = SimpleNamespace(is_refused=False)
        self.ranges = KeyRanges()
        self.lines: list[str] = []
        self.behind = Behind(self.sweeper, self.deliverer, self.ranges, RLock(), self.lines.append)  # type: ignore[arg-type]
        self.behind.began(NOW)

    def look(self, now_ms: int = NOW) -> list[str]:
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
    assert seen.sweeper_is(0) == seen.sweeper_is(BEHIND_MS - 1) == []
    (line,) = seen.sweeper_is(BEHIND_MS)
    assert line.startswith("deliveries are 5 s late: more comes due than is delivered.")
    assert seen.sweeper_is(2 * BEHIND_MS - 1) == []
    (line,) = seen.sweeper_is(2 * BEHIND_MS)
    assert line.startswith("deliveries are 10 s late")


def test_being_on_time_again_is_told_once_and_then_it_begins_anew() -> None:
    seen = Seen()
    seen.sweeper_is(12_000)
    assert seen.sweeper_is(1_000) == []  # not yet
    assert seen.sweeper_is(999) == ["deliveries are on time again; they were more than 12 s late"]
    assert seen.sweeper_is(0) == []
    (line,) = seen.sweeper_is(BEHIND_MS)
    assert line.startswith("deliveries are 5 s late")


def test_what_was_handed_to_recovery_counts_by_how_far_that_has_got() -> None:
    seen = Seen()
    seen.ranges.add((NOW + 1_000, KEY_MAX), NOW + 9_000)
    assert seen.look(NOW + 5_999) == []
    (line,) = seen.look(NOW + 6_000)
    assert line.startswith("deliveries are 5 s late")
    next(iter(seen.ranges)).after = (NOW + 5_500, 7)
    assert seen.look(NOW + 6_400) == ["deliveries are on time again; they were more than 5 s late"]


def test_what_was_overdue_at_the_start_does_not_count() -> None:
    seen = Seen()
    seen.ranges.add((-1, 0), NOW)
    assert seen.look(NOW + 60_000) == []


def test_a_store_that_refuses_has_a_line_of_its_own() -> None:
    seen = Seen()
    seen.deliverer.is_refused = True
    assert seen.sweeper_is(60_000) == []
    seen.deliverer.is_refused = False
    assert seen.look()


def test_the_spiller_looks_when_it_has_nothing_else_to_do(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.plugin.open(host.context)
    now_ms = wall_ms()
    host.plugin.ranges.add((now_ms + 1_000, 0), now_ms + 60_000)
    while host.plugin.spiller.step(now_ms + 31_000) <= now_ms + 31_000:
        pass
    host.close()
    (line,) = host.warnings
    assert line.startswith("deliveries are 30 s late")
