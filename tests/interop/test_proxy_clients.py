"""RocketMQ 5's Java client through Apache's own proxy, both unmodified, on our broker: a ledger for each kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.codes import RequestCode
from remoting.json_dialect import dumps
from tests.support.need import need
from tests.support.ours import OurBroker
from tests.support.proxy import Proxy, client_command, proxy_jars
from tests.support.wire import Wire

pytestmark = [pytest.mark.interop]

COUNT = 1_000
SECONDS = 120


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OurBroker, Proxy, Path]]:
    """Our broker with the proxy in front."""
    folder = tmp_path_factory.mktemp("proxy")
    need(proxy_jars)
    need(lambda: client_command(folder))
    broker = OurBroker(folder / "broker", {"recallMessageEnable": "true"}).start()
    proxy = None
    try:
        proxy = Proxy(folder / "proxy", broker.namesrv)
        yield broker, proxy, folder
    finally:
        if proxy is not None:
            proxy.kill()
        broker.kill()


@pytest.mark.parametrize(
    ("kind", "consumer", "count"),
    [
        ("normal", "push", COUNT),
        ("normal", "simple", COUNT),
        ("delay", "push", COUNT),
        ("fifo", "push", COUNT),
        ("transaction", "simple", COUNT),
        ("normal", "again", 200),
    ],
)
def test_each_message_comes_once(world: tuple[OurBroker, Proxy, Path], kind: str, consumer: str, count: int) -> None:
    broker, proxy, folder = world
    topic, group = f"T-{kind}-{consumer}", f"G-{kind}-{consumer}"
    with Wire(broker.address) as wire:
        wire.create_topic(topic)
        config = {"groupName": group, "consumeMessageOrderly": kind == "fifo"}
        wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps(config))
    lines = proxy.run(folder, topic, group, kind, consumer, str(count), str(SECONDS), seconds=SECONDS + 60)
    due = {body: int(due_ms) for word, body, due_ms, _ in lines if word == "sent"}
    got = [(body, int(at_ms), int(attempt)) for word, body, at_ms, attempt in lines if word == "got"]
    assert len(due) == (count * 9 // 10 if kind == "transaction" else count)
    again = consumer == "again"
    assert Counter(body for body, _, _ in got) == dict.fromkeys(due, 2 if again else 1)
    assert not [body for body, at_ms, _ in got if at_ms < due[body]], "early"
    assert Counter(attempt for _, _, attempt in got) == ({1: count, 2: count} if again else {1: len(due)})
    if again:
        changed = {body: int(at_ms) for word, body, at_ms, _ in lines if word == "changed"}
        late = [at_ms - changed[body] for body, at_ms, attempt in got if attempt == 2]
        assert min(late) >= 400, "before the changed time was over, but for the two clock readings"
    if kind == "fifo":
        for number in range(7):
            own = [int(body) for body, _, _ in got if int(body) % 7 == number]
            assert own == sorted(own), f"group {number} is out of order"
