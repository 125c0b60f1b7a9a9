"""Two messages with one delay key in one batch, or in one turn of the loop: each gets the answer of a turn later."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from broker.turns.recall_handle import RecallHandle
from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode, ResponseCode
from remoting.messages.message import join_batch
from store.disk.errors import StoreFullError
from store.put.pending_api import PendingName, PendingOrder, PendingVerb, PendingVerdict
from tests.broker.core_rig import START_MS, Client, Rig, properties
from tests.broker.test_large_batches import Hand, Rounds
from tests.support.simdisk import SimDisk

DUE_MS = START_MS + 60_000
SMALL = {"mappedFileSizeCommitLog": 1_000_000, "mappedFileSizeConsumeQueue": 6_000, "timewheelSegmentBytes": 1_000_000}
COUNT = 30_000  # messages of the longest batch
MODES = ("reject", "keep", "replace")


def keyed(key: str, mode: str = "", due_ms: int = DUE_MS) -> str:
    more = {"__DELAYKEY_MODE": mode} if mode else {}
    return properties(__STARTDELIVERTIME=due_ms, __DELAYKEY=key, **more)


def submit(client: Client, text: str, body: bytes = b"b") -> int:
    return client.submit(RequestCode.SEND_MESSAGE_V2, client.send_fields("T", text), body)


def submit_batch(client: Client, elements: list[tuple[int, bytes, str]]) -> int:
    return client.submit(RequestCode.SEND_BATCH_MESSAGE, client.send_fields("T", m="true"), join_batch(elements))


def replies(rig: Rig, client: Client) -> dict[int, Any]:
    for _ in range(4):
        rig.core.end_turn()
        rig.store.flusher.step(rig.now_ms)
    return {reply.opaque: reply for reply in client.take()}


def waiting(plugin: DelayPlugin, key: str) -> tuple[bytes, int]:
    answer = plugin.pending.get(PendingName(topic="T", key=key))
    return answer.body, answer.due_ms


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    rig = Rig(
        tmp_path / "store",
        DelayPlugin(),
        files=SimDisk(),
        flushDiskType=request.param,
        **SMALL,
    )
    client = rig.client()
    opaque = submit(client, "")
    assert replies(rig, client)[opaque].code == 0
    yield rig
    assert rig.core.plugins[0].check() == []
    rig.close()


def filler(count: int) -> list[tuple[int, bytes, str]]:
    return [(0, b"f", properties(__STARTDELIVERTIME=DUE_MS, n=number)) for number in range(count)]


@pytest.mark.parametrize("large", [0, 700])
@pytest.mark.parametrize("mode", MODES)
def test_a_key_that_a_batch_has_twice(rig: Rig, mode: str, large: int) -> None:
    client, plugin = rig.client(), rig.core.plugins[0]
    between = filler(large)
    batch = [(0, b"0", properties(a=1)), (0, b"1", keyed("k")), *between, (0, b"2", keyed("k", mode, DUE_MS + 5))]
    before = plugin.pending_count()
    opaque = submit_batch(client, batch)
    reply = replies(rig, client)[opaque]
    if mode == "reject":
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL
        assert f"messages 1 and {large + 2} of the batch: the delay key 'k'" in reply.remark
        assert plugin.pending_count() == before
        assert len(client.messages("T")) == 1
        opaque = submit(client, keyed("k"))
        assert replies(rig, client)[opaque].code == 0  # the key is free
        return
    assert reply.code == 0, reply.remark
    ids = reply.ext["msgId"].split(",")
    assert ids[1] == ids[-1]
    assert plugin.pending_count() == before + 1 + large
    assert waiting(plugin, "k") == ((b"1", DUE_MS) if mode == "keep" else (b"2", DUE_MS + 5))


@pytest.mark.parametrize("recalls", ["true", "false"])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_the_answer_names_the_message_also_if_the_one_that_it_would_have_replaced_went_meanwhile(
    tmp_path: Path, flush: str, recalls: str
) -> None:
    settings = {"flushDiskType": flush, "recallMessageEnable": recalls, **SMALL}
    rig = Rig(tmp_path / "store", DelayPlugin(), files=SimDisk(), **settings)
    client, plugin = rig.client(), rig.core.plugins[0]
    first = submit(client, keyed("k"), b"1")
    first = replies(rig, client)[first]
    second = submit(client, keyed("k", "replace", DUE_MS + 5), b"2")
    name = PendingName(topic="T", key="k")
    assert (
        plugin.pending.change(PendingOrder(verb=PendingVerb.CANCEL, name=name), START_MS).verdict is PendingVerdict.DONE
    )
    second = replies(rig, client)[second]
    assert second.code == 0
    assert second.ext["msgId"] != first.ext["msgId"]
    (waits,) = plugin.list_pending(None, 10)
    assert second.ext["msgId"].endswith(f"{waits.offset:016X}")
    if recalls == "true":
        assert RecallHandle.decode(second.ext["recallHandle"]).offset == waits.offset
    rig.close()


@pytest.mark.parametrize("mode", MODES)
def test_two_sends_of_one_turn(rig: Rig, mode: str) -> None:
    first, second = rig.client(50001), rig.client(50002)
    one, two = submit(first, keyed("k"), b"1"), submit(second, keyed("k", mode, DUE_MS + 5), b"2")
    one, two = replies(rig, first)[one], replies(rig, second)[two]
    assert one.code == 0
    if mode == "reject":
        assert (two.code, f"is that of a pending message, due at {DUE_MS}" in two.remark) == (13, True)
    else:
        assert two.code == 0, two.remark
        assert two.ext["msgId"] == one.ext["msgId"]
    assert waiting(rig.core.plugins[0], "k") == ((b"2", DUE_MS + 5) if mode == "replace" else (b"1", DUE_MS))


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_and_a_send_of_one_turn(rig: Rig, mode: str) -> None:
    client = rig.client()
    one = submit(client, keyed("k"), b"1")
    two = submit_batch(client, [(0, b"x", keyed("x")), (0, b"2", keyed("k", mode, DUE_MS + 5))])
    three = submit(client, keyed("x", mode, DUE_MS + 9), b"3")
    answers = replies(rig, client)
    assert answers[one].code == 0
    assert answers[two].code == (13 if mode == "reject" else 0), answers[two].remark
    assert answers[three].code == 0  # what was refused as a whole leaves its other key free
    assert waiting(rig.core.plugins[0], "x")[0] == (b"x" if mode == "keep" else b"3")


@pytest.mark.parametrize("mode", MODES)
def test_a_send_while_a_large_batch_with_its_key_is_looked_at(tmp_path: Path, mode: str) -> None:
    rounds = Rounds()
    rig = Rig(tmp_path / "store", DelayPlugin(), files=SimDisk(), call_soon=rounds, **SMALL)
    slow, client = rig.client(50001), rig.client(50002)
    assert submit(slow, "") and rounds.go is not None
    rig.core.end_turn()
    slow.take()
    batch = submit_batch(slow, [(0, b"1", keyed("k")), *filler(900), (0, b"e", keyed("end"))])
    other = submit_batch(rig.client(50003), [(0, b"9", keyed("end", "keep")), *filler(600)])
    assert batch and other
    for _ in range(2):
        rounds.calls.popleft()()
    send = submit(client, keyed("k", mode, DUE_MS + 5), b"2")
    for _ in range(60):
        while rounds.calls:
            rounds.calls.popleft()()
        rig.core.end_turn()
    assert slow.take()[0].code == 0
    (reply,) = client.take()
    assert reply.opaque == send
    assert reply.code == (13 if mode == "reject" else 0), reply.remark
    plugin = rig.core.plugins[0]
    assert waiting(plugin, "k") == ((b"2", DUE_MS + 5) if mode == "replace" else (b"1", DUE_MS))
    assert waiting(plugin, "end")[0] == b"e"
    assert plugin.check() == []
    rig.close()


def test_a_key_that_a_long_batch_has_many_times_costs_no_more(tmp_path: Path) -> None:
    """Each search of the batch for the place of its first: nine times as long as without, where four are allowed."""
    hand = Hand(tmp_path / "store", files=SimDisk(), **SMALL | {"timewheelSegmentBytes": 8_000_000})

    def asked(prefix: str, most: int) -> tuple[Any, float]:
        elements = [(0, b"b", keyed(f"{prefix}{min(number, most)}", "keep")) for number in range(COUNT)]
        begin = time.thread_time()
        return hand.ask(elements), time.thread_time() - begin

    plain, many = [asked(f"k{turn}", COUNT) for turn in range(2)], [asked(f"n{turn}", COUNT // 2) for turn in range(2)]
    assert {reply.code for reply, _ in plain + many} == {0}
    assert len(set(many[0][0].ext["msgId"].split(","))) == COUNT // 2 + 1
    quick_s, slow_s = (min(seconds for _, seconds in taken) for taken in (plain, many))
    assert slow_s < 4 * quick_s, f"{slow_s:.2f} s, and {quick_s:.2f} s without"
    hand.rig.close()


@pytest.mark.parametrize("write", range(1, 7))
def test_a_batch_that_replaces_its_own_and_fails_leaves_nothing(tmp_path: Path, write: int) -> None:
    """The disk is full at one write after the other: nothing of the batch is pending, nor after a start."""
    files = SimDisk()
    rig = Rig(tmp_path / "store", DelayPlugin(), files=files, **SMALL)
    client, plugin = rig.client(), rig.core.plugins[0]
    client.send("T")
    client.send("T", keyed("old"), b"old")
    elements = [
        (0, b"1", keyed("k")),
        (0, b"2", keyed("k", "replace", DUE_MS + 1)),
        (0, b"3", keyed("old", "replace")),
        (0, b"4", keyed("k", "replace", DUE_MS + 2)),
    ]
    files.fail_at("pwrite", {write}, StoreFullError("full"))
    opaque = submit_batch(client, elements)
    reply = replies(rig, client)[opaque]
    files.fault = None
    rig.core.end_turn()
    for again in (False, True):
        if again:
            rig.close()
            plugin = DelayPlugin()
            rig = Rig(tmp_path / "store", plugin, files=files, **SMALL)
        want = (b"4", b"3", 2) if reply.code == 0 else (b"", b"old", 1)
        assert (waiting(plugin, "k")[0], waiting(plugin, "old")[0], plugin.pending_count()) == want, (reply, again)
        assert plugin.check() == []
    rig.close()


def test_whatever_a_turn_has_answers_are_those_of_turns_apart(tmp_path: Path) -> None:
    """The same requests in few turns, and in one turn each: the same answers, and the same is pending."""
    seed = Random().randrange(1 << 32)
    print("seed", seed)
    for number in range(12):
        worlds = []
        for apart in (False, True):
            random = Random(f"{seed}/{number}")
            rig = Rig(tmp_path / f"{number}{apart}", DelayPlugin(), files=SimDisk(), **SMALL)
            clients = [rig.client(50001 + n) for n in range(3)]
            clients[0].send("T")
            told: list[tuple[Client, int]] = []
            answers: dict[tuple[int, int], Any] = {}
            for step in range(12):
                client = random.choice(clients)
                dues = [random.choice((DUE_MS + step * 9 + n,) * 4 + (START_MS - 5,)) for n in range(3)]
                text = [keyed(random.choice("abc"), random.choice(MODES), due_ms) for due_ms in dues]
                if random.random() < 0.3:
                    opaque = submit_batch(client, [(0, b"%d.%d" % (step, n), text[n]) for n in range(3)])
                else:
                    opaque = submit(client, text[0], b"%d" % step)
                told.append((client, opaque))
                if random.random() < 0.3 or apart:
                    for one in clients:
                        answers |= {(clients.index(one), opaque): r for opaque, r in replies(rig, one).items()}
            for one in clients:
                answers |= {(clients.index(one), opaque): r for opaque, r in replies(rig, one).items()}
            codes = [answers[clients.index(client), opaque].code for client, opaque in told]
            plugin = rig.core.plugins[0]
            at_once = sorted(message.body for message in clients[0].messages("T"))
            worlds.append((codes, [waiting(plugin, key) for key in "abc"], plugin.pending_count(), at_once))
            assert set(codes) <= {0, 13}
            assert plugin.check() == []
            rig.close()
        assert worlds[0] == worlds[1], (seed, number)
