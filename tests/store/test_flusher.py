"""Group commit, stepped by hand in virtual time."""

from __future__ import annotations

import threading

import pytest

from store.disk.errors import SyncFailedError
from store.disk.flusher import Flusher
from store.disk.ticket import Ticket


class Dummy:
    """A syncable whose disk fails as often as it is told to."""

    def __init__(self, name: str = "dummy") -> None:
        self.name = name
        self.written = 0
        self.synced = 0
        self.failures = 0
        self.calls = 0

    def sync(self) -> None:
        self.calls += 1
        if self.failures:
            self.failures -= 1
            raise SyncFailedError(f"cannot sync {self.name}")
        self.synced = self.written


def test_one_sync_serves_all_who_wait() -> None:
    flusher, log, journal = Flusher(lambda: 0), Dummy("log"), Dummy("journal")
    told: list[tuple[int, bool]] = []
    for number in range(10):
        log.written += 1
        flusher.submit(Ticket((log, log.written)), lambda ok, n=number: told.append((n, ok)))  # type: ignore[misc]
    journal.written = 5
    flusher.submit(Ticket((log, 3), (journal, 5)), lambda ok: told.append((99, ok)))
    flusher.step(0)
    assert told == [*((n, True) for n in range(10)), (99, True)]
    assert (log.calls, journal.calls) == (1, 1)
    flusher.submit(Ticket((log, 10)), lambda ok: told.append((100, ok)))
    flusher.step(0)
    assert told[-1] == (100, True)
    assert log.calls == 1


def test_a_failed_sync_fails_only_those_who_wait_for_it() -> None:
    said: list[str] = []
    flusher, log, journal = Flusher(lambda: 0, said.append), Dummy("log"), Dummy("journal")
    told: list[tuple[str, bool]] = []
    log.written = journal.written = 1
    log.failures = 1
    flusher.submit(Ticket((log, 1)), lambda ok: told.append(("log", ok)))
    flusher.submit(Ticket((log, 1), (journal, 1)), lambda ok: told.append(("both", ok)))
    flusher.submit(Ticket((journal, 1)), lambda ok: told.append(("journal", ok)))
    flusher.step(0)
    assert told == [("log", False), ("both", False), ("journal", True)]
    assert log.calls == 1
    assert said == ["log: cannot sync log"]


def test_periodic_sync_counts_from_the_last_clean_look() -> None:
    flusher, log = Flusher(lambda: 0), Dummy()
    flusher.add(log, 500)
    assert flusher.step(1000) is None
    log.written = 10
    assert flusher.step(1200) == 1500
    assert flusher.step(1499) == 1500
    assert log.synced == 0
    assert flusher.step(1500) is None
    assert log.synced == 10
    log.written = 20
    assert flusher.step(1700) == 2000


def test_too_much_dirt_is_synced_at_once_and_failures_are_tried_again() -> None:
    flusher, log = Flusher(lambda: 0), Dummy()
    flusher.add(log, 500, dirty_max_bytes=100)
    flusher.step(0)
    log.written, log.failures = 101, 1
    assert flusher.step(10) == 110
    assert log.synced == 0
    log.written = 102
    flusher.step(110)
    assert log.synced == 102


def test_a_clock_step_back_does_not_put_it_to_sleep() -> None:
    flusher, log = Flusher(lambda: 0), Dummy()
    flusher.add(log, 500)
    flusher.step(1_000_000)
    log.written = 1
    assert flusher.step(1_000_000) == 1_000_500
    flusher.step(5_000)
    assert log.synced == 1


def test_chores_take_turns_one_slice_a_step() -> None:
    flusher = Flusher(lambda: 0)
    seen: list[str] = []

    def chore(name: str, wishes: list[int | None]) -> None:
        def step(now_ms: int) -> int | None:
            seen.append(f"{name}@{now_ms}")
            return wishes.pop(0)

        flusher.add_chore(name, step)

    chore("a", [1, 1000, 2000])
    chore("b", [500, 2000])
    assert flusher.step(1) == 0  # b has not been asked yet
    assert flusher.step(1) == 1  # a has more to do at once
    assert flusher.step(1) == 500
    assert flusher.step(499) == 500
    assert seen == ["a@1", "b@1", "a@1"]
    assert flusher.step(500) == 1000
    assert seen[-1] == "b@500"


def test_a_failing_chore_is_tried_again() -> None:
    said: list[str] = []
    flusher = Flusher(lambda: 0, said.append)
    calls: list[int] = []

    def step(now_ms: int) -> int | None:
        calls.append(now_ms)
        raise SyncFailedError("no")

    flusher.add_chore("tidy", step)
    assert flusher.step(10) == 110
    flusher.step(50)
    flusher.step(110)
    assert calls == [10, 110]
    assert said == ["tidy: no"] * 2


def test_sync_all_serves_and_syncs_everything_and_raises_the_first_failure() -> None:
    flusher, log, other = Flusher(lambda: 0), Dummy("log"), Dummy("other")
    flusher.add(log, 500)
    flusher.add(other, 500)
    log.written = other.written = 3
    log.failures = 1
    with pytest.raises(SyncFailedError, match="cannot sync log"):
        flusher.sync_all()
    assert other.synced == 3
    told: list[bool] = []
    flusher.submit(Ticket((log, 3)), told.append)
    flusher.sync_all()
    assert told == [True]
    assert log.synced == 3


def test_wait_syncs_in_the_calling_thread() -> None:
    flusher, log = Flusher(lambda: 0), Dummy()
    log.written = 1
    flusher.wait(Ticket((log, 1)))
    flusher.wait(Ticket((log, 1)))
    assert log.calls == 1


def test_the_thread_serves_and_ends() -> None:
    flusher, log = Flusher(lambda: 0), Dummy()
    flusher.add(log, 500)
    flusher.start()
    for _ in range(20):
        log.written += 1
        told = threading.Event()
        answers: list[bool] = []

        def callback(ok: bool, answers: list[bool] = answers, told: threading.Event = told) -> None:
            answers.append(ok)
            told.set()

        flusher.submit(Ticket((log, log.written)), callback)
        assert told.wait(5)
        assert answers == [True]
    flusher.wake()
    flusher.stop()
    assert "flusher" not in {thread.name for thread in threading.enumerate()}


def test_a_bug_in_the_thread_is_reported_and_nobody_waits_for_ever() -> None:
    flusher = Flusher(lambda: 0)
    reported = threading.Event()
    flusher.on_failure = lambda _: reported.set()

    def broken(_: int) -> int | None:
        raise ZeroDivisionError

    flusher.add_chore("broken", broken)
    flusher.start()
    assert reported.wait(5)
    answers: list[bool] = []
    flusher.submit(Ticket(), answers.append)
    assert answers == [False]
    assert isinstance(flusher.failure, ZeroDivisionError)
    flusher.stop()


def test_a_ticket_that_comes_while_the_thread_fails_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    flusher = Flusher(lambda: 0)
    inbox = flusher._inbox

    class Inbox:
        """The thread fails, and has looked for the last time, just before a ticket comes."""

        def put(self, item: object) -> None:
            flusher.failure = ZeroDivisionError()
            inbox.put(item)  # type: ignore[arg-type]

        get_nowait = inbox.get_nowait

    monkeypatch.setattr(flusher, "_inbox", Inbox())
    answers: list[bool] = []
    flusher.submit(Ticket(), answers.append)
    assert answers == [False]


@pytest.mark.parametrize("broken", ["sync", "callback"])
def test_if_the_thread_fails_between_two_tickets_both_are_answered(broken: str) -> None:
    flusher, log = Flusher(lambda: 0), Dummy("log")
    flusher.on_failure = lambda _: None
    answers: list[tuple[int, bool]] = []

    def raises(*_: object) -> None:
        raise ZeroDivisionError

    if broken == "sync":
        log.sync = raises  # type: ignore[method-assign]
    log.written = 2
    first = raises if broken == "callback" else lambda ok: answers.append((1, ok))
    flusher.submit(Ticket((log, 1)), first)
    for number in (2, 3):
        flusher.submit(Ticket((log, 1)), lambda ok, n=number: answers.append((n, ok)))  # type: ignore[misc]
    flusher.start()
    flusher.stop()
    assert answers == ([(1, False)] if broken == "sync" else []) + [(2, False), (3, False)]
