"""The same broker with real threads, real locks and a switch interval of a microsecond, on the real disk.

The seed's baton explores what may happen between two locks; this lets the interpreter decide, at places that no
lock marks. The end is held against the same ledger.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.config.broker_config import BrokerConfig
from broker.core import BrokerCore
from broker.net.channel import MemoryChannel
from broker_plugin.plugin import DelayPlugin
from broker_plugin.rules.properties import own_properties_of
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command
from remoting.connection import FrameDecoder
from remoting.messages.message import record_fields
from remoting.messages.properties import format_properties
from store.put.plugin_api import CommandOutcome
from tests.simulation.ledger import body_of

MESSAGES = 1500
WAIT_S = 60
FAR_MS = 3_600_000


@pytest.fixture
def hurried() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.usefixtures("hurried")
def test_threads_that_change_at_every_instruction(tmp_path: Path, mode: str) -> None:
    values = {
        "flushDiskType": mode,
        "mappedFileSizeCommitLog": "40000",
        "mappedFileSizeConsumeQueue": "2000",
        "timewheelSegmentBytes": "20000",
        "timewheelNearMs": "100",
        "timewheelRunsMax": "3",
        "timewheelMergeWidth": "3",
        "timewheelPageBytes": "120",
        "timewheelHotRecords": "20",
        "timewheelReserveBytes": "0",
    }
    turns: list[object] = []
    durable, answered, arrived = threading.Event(), threading.Event(), threading.Event()

    def soon(call: object) -> None:
        turns.append(call)
        durable.set()

    core = BrokerCore(
        BrokerConfig(tmp_path / "store", values, listen_port=10911, plugins=[]),
        10911,
        [plugin := DelayPlugin()],
        call_soon_threadsafe=soon,
    )
    dues: dict[int, int] = {}
    ids: dict[int, int] = {}
    cancelled: set[int] = set()
    moved: set[int] = set()
    failures: list[BaseException] = []

    def loop() -> None:
        channel, decoder = MemoryChannel(), FrameDecoder()
        core.long_poll.bind()
        for number in range(1, MESSAGES + 1):
            now = core.now_ms()
            dues[number] = now + (number * 7) % 400
            if number % 10 < 2:  # these wait for their cancel, or for their move
                dues[number] += FAR_MS
            text = format_properties({"TIMER_DELIVER_MS": str(dues[number]), "KEYS": f"k{number}"})
            fields = {"a": "pg", "b": "T", "c": "TBW102", "d": 2, "e": number % 2, "f": 0, "g": 5, "h": 0, "i": text}
            ext = {name: str(value) for name, value in {**fields, "j": 0, "k": "false", "m": "false"}.items()}
            command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, number, 0, ext=ext, body=b"%d.x" % number)
            core.dispatcher.received(channel, FrameDecoder().feed(encode_command(command)))
            if number % 3 == 0:
                run_turns()
                hear(channel, decoder)
        end = time.monotonic() + WAIT_S
        while len(ids) < MESSAGES and time.monotonic() < end:
            run_turns()
            hear(channel, decoder)
            durable.wait(0.01)
            durable.clear()

    def run_turns() -> None:
        core.end_turn()
        while turns:
            turns.pop(0)()  # type: ignore[operator]

    def hear(channel: MemoryChannel, decoder: FrameDecoder) -> None:
        for reply in decoder.feed(channel.take()):
            assert reply.code == 0, reply.remark
            ids[reply.opaque] = int(reply.ext["msgId"][-16:], 16)
            answered.set()

    def command() -> None:
        for number in range(1, MESSAGES + 1):
            while number not in ids and not failures:
                answered.wait(0.01)
                answered.clear()
            if failures:
                return
            if number % 5 == 0 and plugin.cancel(ids[number], core.now_ms()).outcome is CommandOutcome.DONE:
                cancelled.add(number)
            elif number % 5 == 1:
                due_ms = core.now_ms() + 30
                if plugin.move(ids[number], due_ms, core.now_ms()).outcome is CommandOutcome.DONE:
                    moved.add(number)

    def guarded(call: object) -> None:
        try:
            call()  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)

    tell = core.store.on_arrival
    assert tell is not None

    def on_arrival(queues: list[tuple[str, int]]) -> None:
        tell(queues)
        arrived.set()

    core.store.on_arrival = on_arrival
    core.start()
    threads = [threading.Thread(target=guarded, args=(call,), daemon=True) for call in (loop, command)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_S)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads)
    end = time.monotonic() + WAIT_S
    while plugin.pending_count() and time.monotonic() < end:
        arrived.wait(0.1)
        arrived.clear()
    core.stop()
    try:
        assert plugin.pending_count() == 0
        assert plugin.check() == []
        assert core.store.check() == []
        assert sum(worker.error_count for worker in plugin._workers) == 0
        delivered: list[int] = []
        for _, record in core.store.scan(0):
            number = int(body_of(record).partition(b".")[0])
            delivered.append(number)
            own = own_properties_of(record_fields(record)[2])
            due_ms = dues[number] if own is None else own[2]
            assert int.from_bytes(record[56:64], "big") >= due_ms
            assert number in moved or due_ms == dues[number]
        assert len(delivered) == len(set(delivered))
        assert set(delivered) == set(dues) - cancelled
        assert cancelled
        assert moved
    finally:
        core.close()
