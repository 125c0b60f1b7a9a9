"""How late and how fast an instance delivers, beside Apache's own timer on the same broker: a measurement.

One broker 5.5.0, one instance. First a steady rate of messages due two seconds later, then very many due in one
millisecond; each by way of the service, and by the broker's own timer. Store times are those of the broker's log. The
broker is a Java program that compiles while it runs, so it is loaded with sends for ``--warm`` seconds first::

    python -m tests.service.process_speed FOLDER --warm 90 --rate 2000 --seconds 30 --hot 20000 --turns 5
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from remoting.messages.properties import format_properties, get_property
from service.link.cluster import ClusterLink, Fate
from tests.service.process_cluster import ENTRY, NUMBER, RealCluster, now_ms
from tests.support.wait import happens, let_pass, pause

__all__ = ["main"]

WANTED = "wanted_ms"
BROKER, QUEUES = "broker-0", 4
LEAD_MS = 2_000
PAUSE_S = 3
SLOWEST = 4_000
"""Nobody reads the log before the hot messages have come at so many a second."""
BODY = b"x" * 1024
AT_ONCE = 256
STEP_S = 0.01
WARM_TURN_S = 5.0


def _by_service(target: str, due_ms: int) -> tuple[str, dict[str, str]]:
    return ENTRY, {"TW_TOPIC": target, "TW_DELIVER_MS": str(due_ms)}


def _by_timer(target: str, due_ms: int) -> tuple[str, dict[str, str]]:
    return target, {"TIMER_DELIVER_MS": str(due_ms)}


Way = Callable[[int], tuple[str, dict[str, str]]]
WAYS: dict[str, Callable[[str, int], tuple[str, dict[str, str]]]] = {"service": _by_service, "timer": _by_timer}


async def _send(link: ClusterLink, way: Way, number: int, due_ms: int) -> None:
    topic, properties = way(due_ms)
    text = format_properties({**properties, NUMBER: str(number), WANTED: str(due_ms)})
    sent = await link.send((topic, BROKER, number % QUEUES), text, BODY)
    assert sent.fate is Fate.STORED, sent


async def steady(namesrv: str, way: Way, rate: int, seconds: float) -> int:
    """Send at a rate, each message due `LEAD_MS` later; how many."""
    loop = asyncio.get_running_loop()
    link = ClusterLink(namesrv, "SENDER")
    await link.core.start()
    try:
        begin, count = loop.time(), 0
        async with asyncio.TaskGroup() as group:
            while (passed := loop.time() - begin) < seconds:
                for _ in range(int(passed * rate) - count):
                    group.create_task(_send(link, way, count, now_ms() + LEAD_MS))
                    count += 1
                await pause(STEP_S)
        return count
    finally:
        await link.core.close()


async def at_once(namesrv: str, way: Way, count: int, due_ms: int) -> None:
    """Send very many that are due in one millisecond."""
    link = ClusterLink(namesrv, "SENDER")
    await link.core.start()
    try:
        for at in range(0, count, AT_ONCE):
            numbers = range(at, min(count, at + AT_ONCE))
            await asyncio.gather(*(_send(link, way, number, due_ms) for number in numbers))
    finally:
        await link.core.close()


async def warm(namesrv: str, topic: str, seconds: float) -> list[int]:
    """Send without a delay for so long, many at once; thousands a second in turns of five seconds."""
    link = ClusterLink(namesrv, "SENDER")
    await link.core.start()
    rates, loop = [], asyncio.get_running_loop()
    end = loop.time() + seconds

    def plain(_: int) -> tuple[str, dict[str, str]]:
        return topic, {}

    try:
        while loop.time() < end:
            begin, count = loop.time(), 0
            while (passed := loop.time() - begin) < WARM_TURN_S:
                await asyncio.gather(*(_send(link, plain, count + more, 0) for more in range(AT_ONCE)))
                count += AT_ONCE
            rates.append(round(count / passed / 1000))
        return rates
    finally:
        await link.core.close()


def lateness(cluster: RealCluster, topic: str, count: int, within_s: float) -> list[int]:
    """How late each message was in the log, ms, ascending; says what was lost, early or there twice."""
    found: dict[int, list[int]] = {}

    def all_there() -> bool:
        found.clear()
        for message in cluster.read(topic).messages:
            number = int(get_property(message.properties, NUMBER) or -1)
            late_ms = message.store_ms - int(get_property(message.properties, WANTED) or 0)
            found.setdefault(number, []).append(late_ms)
        return len(found) == count

    happens(all_there, within_s)
    rows = sorted(row[0] for row in found.values())
    wrong = {
        "lost": count - len(found),
        "early": sum(1 for row in rows if row < 0),
        "twice": sum(1 for row in found.values() if len(row) > 1),
    }
    if any(wrong.values()):
        print(f"{topic}: {wrong}")
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--hot", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--precision-ms", type=int, default=1000, help="of Apache's timer (timerPrecisionMs)")
    parser.add_argument("--warm", type=float, default=0, help="seconds of sends without a delay before the first turn")
    options = parser.parse_args(arguments)
    cluster = RealCluster(options.folder, settings={"timerPrecisionMs": str(options.precision_ms)})
    try:
        cluster.topics(QUEUES)
        cluster.service()
        cluster.wait_owned(4, 240)
        if options.warm:
            cluster.topics(QUEUES, "warm")
            print("warmed:", asyncio.run(warm(cluster.namesrv, "warm", options.warm)), "thousand a second", flush=True)
        for turn in range(options.turns + 1):
            print(f"turn {turn}" if turn else "warm-up", flush=True)
            for name in WAYS:
                _steady_turn(cluster, f"{name}-steady-{turn}", name, options.rate, options.seconds)
            for name in WAYS:
                _hot_turn(cluster, f"{name}-hot-{turn}", name, options.hot)
    finally:
        cluster.stop()
    return 0


def _steady_turn(cluster: RealCluster, topic: str, name: str, rate: int, seconds: float) -> None:
    cluster.topics(QUEUES, topic)
    count = asyncio.run(steady(cluster.namesrv, partial(WAYS[name], topic), rate, seconds))
    let_pass(LEAD_MS / 1000 + PAUSE_S)
    rows = lateness(cluster, topic, count, 60)
    p50, p99, p999 = (rows[min(len(rows) - 1, int(share * len(rows)))] for share in (0.5, 0.99, 0.999))
    print(f"{name}: {count / seconds:,.0f}/s: p50 {p50}, p99 {p99}, p99.9 {p999}, max {rows[-1]} ms", flush=True)


def _hot_turn(cluster: RealCluster, topic: str, name: str, count: int) -> None:
    cluster.topics(QUEUES, topic)
    due_ms = now_ms() + 4_000 + count // 2
    asyncio.run(at_once(cluster.namesrv, partial(WAYS[name], topic), count, due_ms))
    spare_ms = due_ms - now_ms()
    let_pass(max(0.0, spare_ms / 1000) + count / SLOWEST)
    rows = lateness(cluster, topic, count, 120)
    rate = count / max(1, rows[-1]) * 1000
    print(
        f"{name}: {count:,} at once, sent {spare_ms} ms before: first {rows[0]}, last {rows[-1]} ms, {rate:,.0f}/s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
