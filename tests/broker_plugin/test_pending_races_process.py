"""Changes at due time, give or take 5 ms: one winner each, and both sides know which.

In virtual time with the plug-in's steps in an order of chance between the changes, and once more with real threads.
``TIMEWHEEL_RACES`` says how many races there are in virtual time.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from broker_plugin.rules.properties import own_properties_of
from remoting.messages.message import record_fields
from store.put.pending_api import PendingAnswer, PendingName, PendingOrder, PendingVerb, PendingVerdict
from tests.broker_plugin.test_pending_desk import Desk
from tests.broker_plugin.test_plugin import running, wall_ms
from tests.support.wait import let_pass_until_ms, wait_until

RACES = int(os.environ.get("TIMEWHEEL_RACES", "1500"))
VERBS = (PendingVerb.CANCEL, PendingVerb.CANCEL, PendingVerb.MOVE, PendingVerb.NOW, PendingVerb.RESTART)
V = PendingVerdict


def order(rng: random.Random, offset: int) -> PendingOrder:
    verb = rng.choice(VERBS)
    by_ms = rng.randrange(-5, 20) if verb is PendingVerb.MOVE else None
    return PendingOrder(verb=verb, name=PendingName(offset=offset), by_ms=by_ms)


def judge(asked: dict[int, tuple[PendingVerb, PendingAnswer]], copies: Counter[int]) -> Counter[PendingVerdict]:
    """Every message is delivered once, but those whose cancel was answered with done."""
    for offset, (verb, answer) in asked.items():
        cancelled = verb is PendingVerb.CANCEL and answer.verdict is V.DONE
        assert copies[offset] == (0 if cancelled else 1), (hex(offset), verb, answer)
        assert answer.verdict in (V.DONE, V.TOO_LATE, V.ALREADY)
        if answer.verdict is V.TOO_LATE:
            assert answer.when_ms >= answer.due_ms
            assert answer.where
    return Counter(answer.verdict for _, answer in asked.values())


@pytest.mark.parametrize("seed", range(3))
def test_in_virtual_time(seed: int) -> None:
    desk = Desk(seed)
    world, rng = desk.world, random.Random(seed)
    asked: dict[int, tuple[PendingVerb, PendingAnswer]] = {}
    waiting: list[tuple[int, int]] = []  # when it is asked for, and the message
    sent = 0
    while sent < RACES // 3 or waiting:
        if sent < RACES // 3:
            for _ in range(rng.randrange(4)):
                due_ms = desk.now + rng.randrange(1, 15)
                waiting.append((due_ms + rng.randrange(-5, 6), desk.send(due_ms)))
                sent += 1
        steps = [*world.PARTS, "sweeper", *(entry for entry in waiting if entry[0] <= desk.now)]
        rng.shuffle(steps)
        for step in steps:
            if isinstance(step, str):
                world.step(step)
            else:
                waiting.remove(step)
                given = order(rng, step[1])
                asked[step[1]] = given.verb, desk.desk.change(given, desk.now)
        world.clock.now_ms += 1
    world.run(100)
    verdicts = judge(asked, Counter(list(desk.delivered())))
    assert len(asked) == sent
    assert min(verdicts[V.DONE], verdicts[V.TOO_LATE]) > sent // 10


def test_with_real_threads(tmp_path: Path) -> None:
    rng = random.Random(1)
    with running(tmp_path) as host:
        begin_ms = wall_ms() + 3_000  # a busy machine has to have taken all of them by then
        jobs = [(host.send(b"x", begin_ms + number // 4), begin_ms + number // 4) for number in range(400)]
        asked: dict[int, tuple[PendingVerb, PendingAnswer]] = {}

        def work(mine: list[tuple[int, int]]) -> None:
            for offset, due_ms in mine:
                let_pass_until_ms(due_ms + rng.randrange(-5, 6))
                given = order(rng, offset)
                asked[offset] = given.verb, host.plugin.pending.change(given, wall_ms())

        threads = [threading.Thread(target=work, args=(jobs[part::2],)) for part in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: host.plugin.pending_count() == 0, 60, "all of them are through")
        copies: Counter[int] = Counter()
        for _, record in host.store.scan(0):
            own = own_properties_of(record_fields(record)[2])
            assert own is not None
            copies[own[0]] += 1
    judge(asked, copies)
    assert len(asked) == len(jobs)
