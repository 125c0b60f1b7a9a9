"""``python -m tests.broker_plugin.counting_cost``: what counting for metrics costs a message, in processor time.

The threads' own clock is read, and the best of many rounds is told, so that what else the machine does matters little.
Set ``PYTHONPATH`` to the compiled build for its figures. docs/decisions/0038-metrics-and-the-http-door.md has both.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import broker_plugin.figures.tally as tally_module
from broker.metrics.sends import SendCounts
from broker_plugin.figures.balance import TopicBalance
from broker_plugin.figures.tally import Accepted, Delivered
from store.put.lateness import LatenessCounts
from store.put.plugin_api import PutRecord, PutResult, PutStatus

__all__ = ["best_ns", "main"]

ROUNDS, CALLS = 20, 400
RATE = 20_000


def best_ns(work: Callable[[], object], messages: int) -> float:
    """Nanoseconds of this thread's processor time a message, the best of `ROUNDS`."""
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.thread_time_ns()
        for _ in range(CALLS):
            work()
        best = min(best, (time.thread_time_ns() - begun) / CALLS / messages)
    return best


def main() -> None:
    """Print a line for each size of turn and number of topics."""
    print(tally_module.__file__)
    print("messages  topics   timed, in   out   lateness   sum    % of a core at 20,000/s in and out   ordinary, in")
    now_ms = time.time_ns() // 1_000_000
    for count, topics in ((1, 1), (16, 1), (16, 3), (64, 1), (64, 3)):
        names = [f"Topic{number % topics}" for number in range(count)]
        records = [bytes(800 + number * 37 % 600) for number in range(count)]
        entries = [(now_ms + 1 + number * 7919 % 300_000, number, record) for number, record in enumerate(records)]
        puts = [PutRecord(name, 0, record, 0, ()) for name, record in zip(names, records, strict=True)]
        results = [PutResult(PutStatus.PUT_OK)] * count
        dues = sorted(now_ms - number % 5 for number in range(count))
        balance = TopicBalance()
        accepted = Accepted(lambda: time.time_ns() // 1_000_000, 200, balance)
        delivered, lateness = Delivered(200, balance), LatenessCounts()
        sends = SendCounts(200, lambda _topic: False)
        timed = (
            best_ns(lambda: accepted.add(names, entries), count),  # noqa: B023 (called in this turn only)
            best_ns(lambda: delivered.add_puts(puts), count),  # noqa: B023
            best_ns(lambda: lateness.add(now_ms, dues), count),  # noqa: B023
        )
        ordinary = best_ns(lambda: sends.add(puts, results), count)  # noqa: B023
        share = sum(timed) * RATE / 1e9 * 100
        print(
            f"{count:8} {topics:7} {timed[0]:9.0f} {timed[1]:7.0f} {timed[2]:8.0f} {sum(timed):8.0f} {share:14.2f}"
            f"{ordinary:36.0f}"
        )


if __name__ == "__main__":
    main()
