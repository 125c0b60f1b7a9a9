"""What was accepted is delivered whatever the settings are at the next start; never twice, early, or out of reach."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_plugin.plugin import DelayPlugin
from remoting.codes import RequestCode
from remoting.messages.message import StoredMessage, join_batch, parse_message_id
from store.put.plugin_api import CommandOutcome
from tests.broker.core_rig import START_MS, Rig, properties

LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h 3h 4h"
HOUR_MS = 3_600_000


class Life:
    """One store directory, opened again and again with other settings."""

    def __init__(self, root: Path, **values: Any) -> None:
        self.root = root
        self.now_ms = START_MS
        self.open(**values)

    def open(self, **values: Any) -> None:
        """Start with these settings and no others."""
        self.plugin = DelayPlugin()
        values = {"timewheelSegmentBytes": 200_000, "mappedFileSizeCommitLog": 1 << 20, **values}
        self.rig = Rig(self.root, self.plugin, **{"mappedFileSizeConsumeQueue": 2000, **values})
        self.rig.now_ms = self.now_ms
        self.client = self.rig.client()

    def again(self, *, kill: bool = False, **values: Any) -> None:
        """Stop, or be killed, and start with other settings."""
        if kill:
            self.rig.store._release()
        else:
            self.rig.close()
        self.open(**values)

    def topic(self, name: str, read: int, write: int, perm: int = 6) -> None:
        """Make a topic, or change it."""
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": read,
            "writeQueueNums": write,
            "perm": perm,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
        }
        assert self.client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0

    def send(self, text: str = "", body: bytes = b"x", queue_id: int = 0, topic: str = "T") -> None:
        """Send; it must be accepted."""
        reply = self.client.send(topic, text, body, e=queue_id)
        assert reply.code == 0, reply.remark

    def pass_to(self, now_ms: int) -> None:
        """Let time pass and everything that is due be delivered."""
        self.now_ms = self.rig.now_ms = max(now_ms, self.now_ms)
        self.rig.deliver_levels()
        for _ in range(4):
            self.plugin.sweeper.step(self.now_ms)
            self.plugin.recovery.step(self.now_ms)

    def messages(self, topic: str = "T") -> Iterator[tuple[int, StoredMessage]]:
        """Everything that consumers who read all queues of a topic get: (queue id, message)."""
        config = self.rig.core.topics.get(topic)
        for queue_id in range(0 if config is None else config.read_queue_nums):
            for message in self.client.messages(topic, queue_id):
                yield queue_id, message

    def bodies(self, topic: str = "T") -> Counter[bytes]:
        """The bodies of these, counted."""
        return Counter(message.body for _, message in self.messages(topic))

    def well(self) -> None:
        """Every part says that nothing is wrong."""
        assert self.rig.store.check() == []
        assert self.rig.core.level_scheduler.check() == []
        assert self.plugin.check() == []


@pytest.mark.parametrize("kill", [False, True])
def test_a_table_with_fewer_levels_forgets_no_level(tmp_path: Path, kill: bool) -> None:
    life = Life(tmp_path / "store", messageDelayLevel=LEVELS)
    for number in range(5):
        life.send(properties(DELAY=20), b"%d" % number)
    life.again(messageDelayLevel="1s 5s", kill=kill)
    assert life.rig.core.level_scheduler.pending_count() == 5
    assert life.rig.core.level_scheduler.min_needed_offset() < life.rig.store.commit_log.end
    life.pass_to(START_MS + 4 * HOUR_MS - 1)
    assert not life.bodies()
    life.again(messageDelayLevel="1s 5s", kill=kill)
    life.pass_to(START_MS + 4 * HOUR_MS)
    assert life.bodies() == Counter({b"%d" % number: 1 for number in range(5)})
    life.again(messageDelayLevel=LEVELS, kill=kill)
    life.pass_to(START_MS + 9 * HOUR_MS)
    assert life.bodies() == Counter({b"%d" % number: 1 for number in range(5)})
    life.well()
    life.rig.close()


@pytest.mark.parametrize("derived_again", [False, True])
def test_a_level_message_keeps_the_delay_that_it_was_sent_with(tmp_path: Path, derived_again: bool) -> None:
    """After a kill its due time is derived from the log once more: by the table of then, not by that of now."""
    life = Life(tmp_path / "store", messageDelayLevel="1s 1h")
    life.send(properties(DELAY=2), b"an hour")
    life.again(messageDelayLevel="1s 10s", kill=True)
    life.send(properties(DELAY=2), b"ten seconds")
    if derived_again:
        (tmp_path / "store" / "timewheel" / "progress").unlink(missing_ok=True)
    life.again(messageDelayLevel="1s 2h", kill=True)
    life.pass_to(START_MS + 10_000)
    assert life.bodies() == {b"ten seconds": 1}
    life.pass_to(START_MS + HOUR_MS - 1)
    assert life.bodies() == {b"ten seconds": 1}
    life.pass_to(START_MS + HOUR_MS)
    assert life.bodies() == {b"ten seconds": 1, b"an hour": 1}
    life.rig.close()


def test_a_damaged_file_of_level_tables_is_kept_aside_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life(tmp_path / "store", messageDelayLevel="1s 1h")
    life.send(properties(DELAY=2), b"x")
    path = tmp_path / "store" / "timewheel" / "levels"
    path.write_bytes(path.read_bytes().replace(b"3600000", b"3600001"))
    life.again(messageDelayLevel="1s 1h", kill=True)
    assert path.with_name("levels.aside").exists()
    assert "damaged" in caplog.text
    life.pass_to(START_MS + HOUR_MS)
    assert life.bodies() == {b"x": 1}
    life.rig.close()


def half_of(life: Life, body: bytes, queue_id: int) -> dict[str, Any] | None:
    """Send a half message; what its END_TRANSACTION has to say, None if it was refused."""
    text = properties(TRAN_MSG="true", PGROUP="pg", UNIQ_KEY=body.decode()[:20])
    reply = life.client.send("T", text, body, e=queue_id, f=4, g=life.now_ms)
    if reply.code:
        return None
    return {
        "producerGroup": "pg",
        "tranStateTableOffset": reply.ext["queueOffset"],
        "commitLogOffset": parse_message_id(reply.ext["msgId"])[1],
        "msgId": reply.ext["transactionId"],
        "transactionId": reply.ext["transactionId"],
    }


def decide(life: Life, half: dict[str, Any] | None, outcome: int = 8) -> None:
    """Commit, or roll back; it must be answered with success."""
    assert half is not None
    reply = life.client.ask(RequestCode.END_TRANSACTION, {**half, "commitOrRollback": outcome})
    assert reply.code == 0, reply.remark


@pytest.mark.parametrize(("read", "write"), [(4, 4), (2, 4), (4, 2), (1, 1)])
@pytest.mark.parametrize("remade", [False, True])
def test_a_topic_with_fewer_queues_gets_what_waits_in_those_it_has(
    tmp_path: Path, read: int, write: int, remade: bool
) -> None:
    life = Life(tmp_path / "store")
    life.topic("T", 8, 8)
    for queue_id in range(8):
        life.send(properties(__STARTDELIVERTIME=START_MS + 9_000), b"timed %d" % queue_id, queue_id)
        life.send(properties(DELAY=2), b"level %d" % queue_id, queue_id)
    halves = [half_of(life, b"half %d" % queue_id, queue_id) for queue_id in range(8)]
    life.again()
    if remade:
        assert life.client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
        life.pass_to(START_MS + 1_000)
    life.topic("T", read, write)
    for half in halves:
        decide(life, half)
    life.pass_to(START_MS + 10_000)
    life.pass_to(START_MS + 200_000)
    kinds = (b"timed", b"level", b"half")
    # Queues that are written, and not read yet, are the administrator's to be read: as with any send.
    reached = {b"%s %d" % (kind, n): 1 for kind in kinds for n in range(8) if not read <= n < write}
    assert life.bodies() == reached
    life.topic("T", max(read, write), write)
    assert life.bodies() == {b"%s %d" % (kind, n): 1 for kind in kinds for n in range(8)}
    life.well()
    life.again(kill=True)  # the copies are known again, in whatever queue they stand
    life.pass_to(START_MS + 400_000)
    assert sum(life.bodies().values()) == 24
    life.rig.close()


def test_what_many_wait_for_goes_to_queues_that_exist(tmp_path: Path) -> None:
    """As many as are delivered in one block."""
    life = Life(tmp_path / "store")
    life.topic("T", 8, 8)
    for number in range(200):
        text = properties(__STARTDELIVERTIME=START_MS + 2_000, UNIQ_KEY=f"U{number}")
        life.send(text, b"%d" % number, number % 8)
    life.topic("T", 3, 3)
    life.pass_to(START_MS + 2_000)
    found = list(life.messages())
    assert sorted(int(message.body) for _, message in found) == list(range(200))
    assert all(message.queue_id == queue_id for queue_id, message in found)
    life.rig.close()


def test_a_lower_limit_for_messages_holds_nobody_back(tmp_path: Path) -> None:
    large = bytes(300_000)
    life = Life(tmp_path / "store", timewheelSegmentBytes=1 << 20)
    life.send(properties(__STARTDELIVERTIME=START_MS + 2_000), large)
    life.send(properties(DELAY=1), large)
    half = half_of(life, b"h" * 300_000, 0)
    life.again(maxMessageSize=1000, timewheelSegmentBytes=100_000)
    assert life.client.send("T", "", large).code == 13
    decide(life, half)
    life.pass_to(START_MS + 2_000)
    assert life.bodies() == {large: 2, b"h" * 300_000: 1}
    life.well()
    life.rig.close()


def test_with_smaller_journal_segments_what_waits_can_be_moved_and_put_back(tmp_path: Path) -> None:
    """Also where a batch has replaced it by its delay key, and is refused: what was acknowledged comes."""
    large = bytes(300_000)
    life = Life(tmp_path / "store", timewheelSegmentBytes=1 << 20)
    replaced = life.client.send("T", properties(__STARTDELIVERTIME=START_MS + 20_000, __DELAYKEY="k"), large)
    other = life.client.send("T", properties(__STARTDELIVERTIME=START_MS + 20_000), large)
    life.send(properties(__STARTDELIVERTIME=START_MS + 20_000), large)  # so that no other one has room beside them
    assert (replaced.code, other.code) == (0, 0)
    life.again(timewheelSegmentBytes=100_000)
    moved = life.plugin.move(parse_message_id(other.ext["msgId"])[1], START_MS + 1_000, START_MS)
    assert moved.outcome is CommandOutcome.DONE
    texts = (
        properties(__STARTDELIVERTIME=START_MS + 500, __DELAYKEY="k", __DELAYKEY_MODE="replace"),
        properties(__STARTDELIVERTIME=START_MS - 1),
    )
    batch = join_batch([(0, b"small", text) for text in texts])
    life.client.submit(RequestCode.SEND_BATCH_MESSAGE, life.client.send_fields("T"), batch)
    life.rig.now_ms -= 60_000  # before the batch is stored: what was due is not any more
    life.rig.core.end_turn()
    life.rig.now_ms += 60_000
    life.rig.store.flusher.step(life.rig.now_ms)
    (refusal,) = life.client.take()
    assert refusal.code != 0
    life.send(properties(__STARTDELIVERTIME=START_MS + 500, __DELAYKEY="another"), b"another")
    life.again(timewheelSegmentBytes=100_000, kill=True)
    life.pass_to(START_MS + 2_000)
    assert life.bodies() == {large: 1, b"another": 1}
    life.pass_to(START_MS + 20_000)
    assert life.bodies() == {large: 3, b"another": 1}
    life.well()
    life.rig.close()


def test_a_shorter_horizon_is_for_new_messages(tmp_path: Path) -> None:
    life = Life(tmp_path / "store")
    life.send(properties(__STARTDELIVERTIME=START_MS + 90_000), b"far")
    life.again(timerMaxDelaySec=10, kill=True)
    assert life.client.send("T", properties(__STARTDELIVERTIME=START_MS + 90_000)).code == 13
    life.pass_to(START_MS + 90_000)
    assert life.bodies() == {b"far": 1}
    life.rig.close()


def test_half_messages_are_decided_while_new_ones_are_refused(tmp_path: Path) -> None:
    life = Life(tmp_path / "store")
    half = half_of(life, b"half", 0)
    life.again(rejectTransactionMessage="true", kill=True)
    assert half_of(life, b"another", 0) is None
    decide(life, half)
    assert life.bodies() == {b"half": 1}
    life.rig.close()


def test_without_the_plugin_messages_wait_and_are_there_when_it_is_back(tmp_path: Path) -> None:
    life = Life(tmp_path / "store")
    life.send(properties(__STARTDELIVERTIME=START_MS + 2_000), b"timed")
    life.rig.close()
    bare = Rig(tmp_path / "store", mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=2000)
    bare.now_ms = START_MS + 9_000
    assert bare.client().send("T", "", b"plain").code == 0
    bare.close()
    life.now_ms = START_MS + 10_000
    life.open()
    life.pass_to(START_MS + 10_000)
    assert life.bodies() == {b"timed": 1, b"plain": 1}
    life.rig.close()


def test_another_name_and_another_address_change_nothing_for_what_waits(tmp_path: Path) -> None:
    life = Life(tmp_path / "store", brokerIP1="10.0.0.1")
    for at, address in ((1_000, "10.0.0.2"), (2_000, "192.0.2.7"), (3_000, "10.0.0.1")):
        life.send(properties(__STARTDELIVERTIME=START_MS + at), b"%d" % at)
        life.send(properties(DELAY=1), b"level %d" % at)
        life.again(brokerIP1=address, brokerName=f"b{at}", brokerClusterName=f"c{at}", kill=at == 2_000)
        life.pass_to(START_MS + at - 500)
    life.pass_to(START_MS + 9_000)
    wanted = [b"1000", b"2000", b"3000"]
    assert life.bodies() == Counter(wanted + [b"level " + body for body in wanted])
    life.well()
    life.rig.close()


# ---------------------------------------------------------------------------------------------------- any of them

TABLES = ("1s", "1s 5s 10s", "2s 1s 1h 10s", LEVELS, "5s " * 30)
STARTS = st.fixed_dictionaries(
    {
        "kill": st.booleans(),
        "level_table": st.sampled_from(TABLES),
        "max_bytes": st.sampled_from((20, 1000, 4 << 20)),
        "queues": st.tuples(st.integers(1, 6), st.integers(1, 6)),
        "perm": st.sampled_from((6, 6, 6, 2, 4)),
        "remake": st.booleans(),
        "max_delay_sec": st.sampled_from((1, 5, 259_200)),
        "address": st.sampled_from(("127.0.0.1", "10.0.0.9", "192.0.2.7")),
        "name": st.sampled_from(("broker-a", "other")),
        "segment_bytes": st.sampled_from((60_000, 200_000)),
        "pass_ms": st.integers(0, 8_000),
    }
)
SENDS = st.lists(
    st.tuples(
        st.sampled_from(("timed", "level", "half")), st.integers(0, 5), st.integers(0, 31), st.integers(0, 12_000)
    ),
    max_size=6,
)


@pytest.mark.pure
@settings(max_examples=40)
@given(st.lists(st.tuples(STARTS, SENDS), min_size=2, max_size=4))
def test_settings_drawn_at_each_start(story: list[tuple[dict[str, Any], list[tuple[str, int, int, int]]]]) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as root:
        tell(Path(root) / "store", story)


def tell(root: Path, story: list[tuple[dict[str, Any], list[tuple[str, int, int, int]]]]) -> None:
    life = Life(root)
    wanted: dict[bytes, int] = {}  # body to the earliest due time
    halves: list[Any] = []
    number = 0
    for start, sends in story:
        life.again(
            kill=start["kill"],
            messageDelayLevel=start["level_table"].strip(),
            maxMessageSize=start["max_bytes"],
            timerMaxDelaySec=start["max_delay_sec"],
            brokerIP1=start["address"],
            brokerName=start["name"],
            timewheelSegmentBytes=start["segment_bytes"],
        )
        if start["remake"]:
            life.topic("T", 6, 6)
            got = life.bodies()  # what is deleted is gone: as asked for
            for body in got:
                assert wanted.pop(body) <= life.now_ms
            life.client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        life.topic("T", *start["queues"], start["perm"])
        for kind, queue_id, level, ahead_ms in sends:
            number += 1
            body = b"%d %s" % (number, kind.encode())
            if kind == "half":
                half = half_of(life, body, queue_id)
                if half is not None:
                    halves.append(half)
                    wanted[body] = life.now_ms
                continue
            delays = [_ms(text) for text in start["level_table"].split()]
            due_ms = life.now_ms + (
                ahead_ms if kind == "timed" else delays[min(level, len(delays)) - 1] if level else 0
            )
            text = properties(DELAY=level) if kind == "level" else properties(__STARTDELIVERTIME=due_ms)
            if life.client.send("T", text, body, e=queue_id).code == 0:
                wanted[body] = due_ms
        life.pass_to(life.now_ms + start["pass_ms"])
        for _, message in life.messages():
            assert wanted[message.body] <= life.now_ms, "early"
    life.again(kill=True)
    life.topic("T", 6, 6)
    for half in halves:
        decide(life, half)
    for _ in range(6):  # as long as what failed pauses between two tries
        life.pass_to(life.now_ms + 4 * HOUR_MS)
    assert life.bodies() == Counter(list(wanted))
    life.well()
    life.rig.close()


def _ms(text: str) -> int:
    return int(text[:-1]) * {"s": 1000, "m": 60_000, "h": HOUR_MS}[text[-1]]
