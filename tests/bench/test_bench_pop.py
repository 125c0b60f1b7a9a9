"""The consumer that pops: its frames, and what it finds out of our broker."""

from __future__ import annotations

import base64
import dataclasses
import json
import socket
import time
from pathlib import Path

import pytest

from bench.figures.results import Section
from bench.generator.load import Load
from bench.generator.pop_frames import POP, Portion, batch_ack_frame, frame, portion_of, records, taken_by_queue
from bench.generator.popper import Popper, PopTask, _Line
from bench.generator.rocketmq import templates
from bench.peers.catalogue import OURS
from bench.peers.system import System
from bench.peers.wire import Wire
from bench.running.session import BenchError, Session, answer, end, spawn
from bench.workloads import pop
from bench.workloads.pop import seen
from broker.pop.handle import Handle
from broker.pop.retry_record import for_reply
from remoting.messages.message import Message, encode_record

COUNT = 500
HOST = bytes((127, 0, 0, 1, 0, 0, 0, 1))


def test_a_reply_names_what_was_popped_by_queue() -> None:
    ext = {
        "popTime": "1000",
        "invisibleTime": "60000",
        "reviveQid": "3",
        "startOffsetInfo": "0 0 5;0 1 70;1 0 2",
        "msgOffsetInfo": "0 0 5,6;0 1 71;1 0 2",
    }
    found = [(one.retry, one.queue_id, one.start, one.offsets) for one in taken_by_queue(ext)]
    assert found == [("0", 0, 5, [5, 6]), ("0", 1, 70, [71]), ("1", 0, 2, [2])]
    nothing = {**ext, "startOffsetInfo": "", "msgOffsetInfo": ""}
    assert taken_by_queue(nothing) == []


def test_one_acknowledgement_names_all_of_a_pop_by_bits() -> None:
    data = batch_ack_frame("T", "G", [Portion(5, 1000, 60000, 3, "0", 1, [5, 6, 13])])
    body = json.loads(data[8 + int.from_bytes(data[5:8], "big") :])
    (entry,) = body["acks"]
    assert (entry["so"], entry["q"], entry["b"]) == (5, 1, "AwE=")  # bits 0, 1 and 8


@pytest.mark.parametrize(
    "body", [b"\x00" * 8 + (7).to_bytes(8, "big"), b"\x01POP_CK\x01" + (7).to_bytes(8, "big") + b"x"]
)
def test_what_has_come_again_brings_its_handle(body: bytes) -> None:
    message = Message("%RETRY%G_T", 0, 0, 0, 1, HOST, body=body, properties="POP_CK\x011 1 1 1 1 forged\x02")
    plain = encode_record(message, HOST, 99)
    again = for_reply(plain, "T", Handle(4, 1000, 3000, 2, "1", "broker-a").text(0, 4))
    message.properties = "A\x01b\x02"
    found = list(records(encode_record(message, HOST, 98) + again))
    assert [(number, stored_ms) for number, stored_ms, *_ in found] == [(7, 98), (7, 99)]
    (_, _, first, *_), (_, _, second, queue_id, offset) = found
    assert first == b""
    assert portion_of(second, queue_id, [offset]) == Portion(4, 1000, 3000, 2, "1", 0, [0])


def test_a_topic_may_have_more_than_ten_queues() -> None:
    made = templates(Load(1, kind="normal", queues=250))
    assert len({len(one.data) for one in made}) == 1
    assert [b'"e":"%03d"' % queue in one.data for queue, one in enumerate(made)] == [True] * 250


@pytest.mark.process
def test_our_broker_gives_all_of_it_to_each_group_and_again_to_who_does_not_acknowledge(tmp_path: Path) -> None:
    session = Session(tmp_path, [], quick=True)
    session.available([OURS])
    with session.running(OURS) as running:
        running.prepare("T", 4)
        load = Load(running.port, kind="normal", topic="T", connections=4, count=COUNT, queues=4, seconds=30)
        task = PopTask(running.port, "T", "Again", "again", 3, invisible_ms=700)
        with seen(session, task) as catch:
            assert session.generate(load).accepted == COUNT
            verdict = catch.wait(COUNT, time.time() * 1000 + 30_000).judge()
        assert (verdict.delivered, verdict.early, verdict.repeated) == (COUNT, 0, 0)
        for kind, one_ack in (("drain", True), ("drain", False), ("hold", True)):
            group = f"{kind}{one_ack}"
            drain = dataclasses.replace(task, group=group, kind=kind, count=COUNT, one_ack=one_ack, invisible_ms=60_000)
            drain.seconds = 0.2 if kind == "drain" else 30
            child = spawn("bench.generator.popper", dataclasses.asdict(drain))
            try:
                result = answer(child)
            finally:
                end(child)
            assert (result["refused"], result["refusal"]) == (0, "")
            assert result["took"] >= COUNT or kind == "drain"
            assert result["per_second"] > 0
        with Wire(f"127.0.0.1:{running.port}") as wire:
            info = json.loads(wire.ask(28, {})[1])["table"]
        assert int(info["popInFlight"]) == COUNT, "what was acknowledged is not in flight"
        assert int(info["popAckedUnknown"]) == 0


def test_a_variant_that_fails_takes_nobody_elses_figures_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def turn(_session: Session, _section: Section, system: System) -> None:
        done.append(system.name)
        if "bad" in system.name:
            raise BenchError(f"{system.title}: no answer")

    sound, bad = (dataclasses.replace(OURS, name=name) for name in ("sound", "bad"))
    monkeypatch.setattr(pop, "_turn", turn)
    monkeypatch.setattr(pop, "POP_VARIANTS", {"apache": (bad,)})
    session = Session(tmp_path, [sound], repeats=2, peers=["apache"])
    section = pop.run(session)
    assert done == ["sound", "bad", "sound"]
    assert "no answer" in section.notes[-1]
    session.systems = [bad]  # what was asked for by name fails loudly
    with pytest.raises(BenchError, match="no answer"):
        pop.run(session)


def test_what_comes_again_without_a_handle_of_its_own_is_acknowledged_by_the_headers() -> None:
    """As Apache's broker answers with its pops in RocksDB."""
    popper = Popper(PopTask(1, "T", "G", "again", connections=0))
    reply = {
        "popTime": "1000",
        "invisibleTime": "3000",
        "reviveQid": "2",
        "startOffsetInfo": "0 4 9",
        "msgOffsetInfo": "0 4 9",
    }
    record = encode_record(Message("T", 4, 0, 9, 1, HOST, body=bytes(8) + (7).to_bytes(8, "big")), HOST, 98)
    assert not popper._noted(reply, record, 1)
    again = {**reply, "popTime": "4100", "startOffsetInfo": "1 0 5", "msgOffsetInfo": "1 0 5"}
    (frame,) = popper._noted(again, record, 5)
    (entry,) = json.loads(frame[8 + int.from_bytes(frame[5:8], "big") :])["acks"]
    assert (entry["r"], entry["so"], entry["q"]) == ("1", 5, 0)
    assert popper._rows == [(7, 4_000_000, 98_000, 5)]


def test_what_has_come_again_of_one_pop_is_acknowledged_by_one_entry() -> None:
    """Apache's client puts all handles of one pop and queue into one entry; one for each took the broker longer."""
    popper = Popper(PopTask(1, "T", "G", "again", connections=0))
    plain = encode_record(Message("%RETRY%G_T", 0, 0, 9, 1, HOST, 1, body=bytes(16)), HOST, 98)
    body = b""
    for start, offset in ((4, 4), (4, 6), (7, 7)):
        handle = Handle(start, 1000, 3000, 2, "1", "broker-a").text(0, offset)
        body += for_reply(plain[:20] + offset.to_bytes(8, "big") + plain[28:], "T", handle)
    (frame,) = popper._noted({"popTime": "1000", "invisibleTime": "3000", "reviveQid": "2"}, body, 1)
    entries = json.loads(frame[8 + int.from_bytes(frame[5:8], "big") :])["acks"]
    assert [(entry["so"], base64.b64decode(entry["b"])) for entry in entries] == [(4, b"\x05"), (7, b"\x01")]


def test_what_has_come_is_stamped_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes while another connection is looked at would else be received before it was stored."""
    clock_us = [10]
    stamps: list[int] = []

    def read(_: _Line) -> list[bytes]:
        clock_us[0] = 20
        return [frame(0, POP, {})[4:]]

    def noted(_popper: Popper, _ext: dict[str, str], _body: bytes, received_us: int) -> list[bytes]:
        stamps.append(received_us)
        return []

    monkeypatch.setattr(_Line, "read", read)
    monkeypatch.setattr(Popper, "_noted", noted)
    with socket.create_server(("127.0.0.1", 0)) as server:
        popper = Popper(PopTask(server.getsockname()[1], "T", "G", "again", connections=1))
        monkeypatch.setattr(time, "time_ns", lambda: clock_us[0] * 1_000)
        popper._asks = False
        with server.accept()[0] as broker, next(iter(popper._lines.values())).sock:
            broker.send(b"x")
            popper._turn(1_000)
    assert stamps == [20]
