"""Stock clients, unmodified, against our broker: every message, once, never early, as it was sent, as on Apache's.

One run of the workload on either broker (fixtures `our_run`, `apache_run`); each test looks at one client's share of
one kind.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.interop.compare import DIFFERENCES, as_received, as_stored, unexplained
from tests.interop.conftest import Run
from tests.interop.run import Part
from tests.interop.workload import KINDS, SENDS

pytestmark = [pytest.mark.interop, pytest.mark.process]

PARTS = [pytest.param(client, kind, id=f"{client}-{kind}") for client, kinds in SENDS.items() for kind in kinds]
TIMED = [one for one in PARTS if KINDS[str(one.values[1])].due in ("start", "deliver", "delay")]
DELAYED = [one for one in PARTS if KINDS[str(one.values[1])].due != "none"]
SHOWN = 5


def _some(problems: list[str]) -> str:
    return f"{len(problems)} problems:\n" + "\n".join(problems[:SHOWN])


def _percentiles(values: list[int]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:>6} {ordered[int(len(ordered) * 0.99)]:>6} {ordered[-1]:>6}"


@pytest.mark.parametrize(("client", "kind"), PARTS)
def test_every_message_is_received_once(our_run: Run, client: str, kind: str) -> None:
    part = our_run.part(client, kind)
    assert not part.failures, _some(part.failures)
    assert len(part.sent) == len(part.messages) >= 150
    counts = Counter({n: len(events) for n, events in part.received.items()})
    wanted = {message.n for message in part.wanted}
    assert sorted(wanted - counts.keys()) == [], "never received"
    assert sorted(counts.keys() - wanted) == [], "received although its tag was not asked for"
    assert {n: count for n, count in counts.items() if count > 1} == {}, "received more than once"


@pytest.mark.parametrize(("client", "kind"), PARTS)
def test_commit_log_holds_every_message_once(our_run: Run, client: str, kind: str) -> None:
    part = our_run.part(client, kind)
    assert {n: len(records) for n, records in part.disk.items()} == {one.n: 1 for one in part.messages}
    offsets: dict[int, list[int]] = {}
    for records in part.disk.values():
        offsets.setdefault(records[0].queue_id, []).append(records[0].queue_offset)
    for queue_id, found in offsets.items():
        assert sorted(found) == list(range(len(found))), f"queue {queue_id} has gaps or repeats"


@pytest.mark.parametrize(("client", "kind"), DELAYED)
def test_never_early(our_run: Run, client: str, kind: str, figures: list[str]) -> None:
    part = our_run.part(client, kind)
    stored, received, problems, sent_late = [], [], [], 0
    for message in part.wanted:
        due_ms = part.due_ms(message)
        record, event = part.disk[message.n][0], part.received[message.n][0]
        for name, at_ms in (("stored", record.store_ms), ("received", event["received_ms"])):
            if at_ms < due_ms:
                problems.append(f"{message.n} {name} {due_ms - at_ms} ms early")
        if part.kind.due != "level" and part.sent[message.n]["ended_ms"] >= due_ms:
            sent_late += 1
            continue
        stored.append(record.store_ms - due_ms)
        received.append(event["received_ms"] - due_ms)
    assert not problems, _some(problems)
    assert sent_late < len(part.wanted) / 2, "the machine is too busy: most were sent after they were due"
    figures.append(
        f"{client:13} {kind:13} {len(stored):5} messages   ms late p50 p99 max   "
        f"at the broker {_percentiles(stored)}   at the consumer {_percentiles(received)}"
    )


@pytest.mark.parametrize(("client", "kind"), PARTS)
def test_arrives_as_it_was_sent(our_run: Run, client: str, kind: str) -> None:
    part = our_run.part(client, kind)
    problems = []
    for message in part.wanted:
        event = part.received[message.n][0]
        properties = {**event.get("system_properties", {}), **event["properties"]}
        due = {"start": "__STARTDELIVERTIME", "deliver": "TIMER_DELIVER_MS"}.get(part.kind.due)
        wanted = {
            **message.properties,
            **({"TAGS": message.tag} if message.tag else {}),
            **({"KEYS": " ".join(message.keys)} if message.keys else {}),
            **({due: str(part.due_ms(message))} if due else {}),
        }
        for name, value in wanted.items():
            if properties.get(name) != value:
                problems.append(f"{message.n}: property {name} is {properties.get(name)!r}, was {value!r}")
        if event["body_sha256"] != message.body_sha256:
            problems.append(f"{message.n}: another body, {event['body_bytes']} bytes of {len(message.body)}")
        if event.get("flag", message.flag) != message.flag:
            problems.append(f"{message.n}: flag {event['flag']}, was {message.flag}")
        if event["reconsume_times"] != 0:
            problems.append(f"{message.n}: reconsume times {event['reconsume_times']}")
    assert not problems, _some(problems)


@pytest.mark.parametrize(("client", "kind"), PARTS)
def test_client_sees_what_the_commit_log_holds(our_run: Run, client: str, kind: str) -> None:
    """Ids, positions and times that a client shows are those of the record, and those that the sender was told."""
    part = our_run.part(client, kind)
    problems = []
    for message in part.wanted:
        record, event, sent = part.disk[message.n][0], part.received[message.n][0], part.sent[message.n]
        told = {
            "store_ms": record.store_ms,
            "store_host": record.store_host,
            "born_ms": record.born_ms,
            "queue_id": record.queue_id,
            "queue_offset": record.queue_offset,
            "commit_log_offset": record.offset,
            "offset_msg_id": record.offset_msg_id,
        }
        problems += [
            f"{message.n}: {name} is {event[name]}, on disk {value}"
            for name, value in told.items()
            if event.get(name, value) != value
        ]
        if sent.get("queue_id", record.queue_id) != record.queue_id:
            problems.append(f"{message.n}: the sender was told queue {sent['queue_id']}, it is in {record.queue_id}")
        # A broker, Apache's too, leaves the messages inside a batch as they came; Go gives them no key.
        if not record.properties.get("UNIQ_KEY") and not (client == "go-v2" and part.kind.batch):
            problems.append(f"{message.n}: no UNIQ_KEY")
        if part.kind.due == "none" and sent.get("offset_msg_id", record.offset_msg_id) != record.offset_msg_id:
            problems.append(f"{message.n}: the sender was told id {sent['offset_msg_id']}, not {record.offset_msg_id}")
    assert not problems, _some(problems)
    ports = {records[0].born_host for records in part.disk.values()}
    assert len(ports) <= 2, "one producer has one connection (a second if it had to connect again)"


@pytest.mark.parametrize(("client", "kind"), TIMED)
def test_timed_messages_carry_delay_id_and_due_time(our_run: Run, client: str, kind: str) -> None:
    part = our_run.part(client, kind)
    problems, ids = [], set()
    for message in part.messages:
        if part.sent[message.n]["ended_ms"] >= part.due_ms(message):
            continue  # it may have been an ordinary message by the time it came
        properties = part.disk[message.n][0].properties
        ids.add(properties.get("__TW_ID"))
        due = properties.get("__TW_DUE", "0")
        late_ms = int(due) - part.due_ms(message)
        # A relative time counts from when the broker reads it.
        way_ms = part.sent[message.n]["ended_ms"] - part.disk[message.n][0].born_ms
        if not 0 <= late_ms <= (2_000 + way_ms if part.kind.due == "delay" else 0) or "__TW_ID" not in properties:
            problems.append(f"{message.n}: __TW_ID {properties.get('__TW_ID')}, __TW_DUE off by {late_ms} ms")
    assert not problems, _some(problems)
    assert len(ids) > len(part.messages) / 2


NEEDED: set[str] = set()


@pytest.mark.apache
@pytest.mark.parametrize(("client", "kind"), PARTS)
def test_same_as_on_apache(our_run: Run, apache_run: Run, client: str, kind: str) -> None:
    """Field by field: what the client shows, and what is on disk, but for the table of differences."""
    ours, apache = our_run.part(client, kind), apache_run.part(client, kind)
    assert not apache.failures, f"on Apache's broker: {_some(apache.failures)}"
    problems: Counter[tuple[str, str, str, str]] = Counter()
    for message in ours.wanted:
        if _was_late(ours, message.n) or _was_late(apache, message.n):
            continue
        views = (
            ("received", as_received(ours, message, ours.received[message.n][0], our_run.port),
             as_received(apache, message, apache.received[message.n][0], apache_run.port)),
            ("stored", as_stored(ours, message, ours.disk[message.n][0], our_run.port),
             as_stored(apache, message, apache.disk[message.n][0], apache_run.port)),
        )  # fmt: skip
        for view, mine, theirs in views:
            for name, our_value, apache_value in unexplained(ours.kind, mine, theirs, NEEDED):
                problems[view, name, our_value, apache_value] += 1
    lines = [f"{count} x {view}: {name}: ours {a!r}, Apache's {b!r}" for (view, name, a, b), count in problems.items()]
    assert not lines, _some(lines)


def _was_late(part: Part, n: int) -> bool:
    """Say whether a timed message was sent when it was due already: an ordinary message then, on both brokers."""
    if part.kind.due in ("none", "level"):
        return False
    return bool(part.sent[n]["ended_ms"] >= part.base_ms + part.messages[n].due_in_ms)


@pytest.mark.apache
@pytest.mark.usefixtures("apache_run")
def test_no_row_of_the_table_of_differences_is_idle(our_run: Run) -> None:
    """A difference that is gone must leave the table (runs after the comparison, which notes the rows it needs)."""
    if our_run.missing or not NEEDED:
        pytest.skip("the comparison did not run for all clients")
    assert {row.field for row in DIFFERENCES} == NEEDED


@pytest.mark.apache
@pytest.mark.parametrize(("client", "kind"), [one for one in PARTS if KINDS[str(one.values[1])].batch])
def test_sender_is_told_the_same_as_on_apache(our_run: Run, apache_run: Run, client: str, kind: str) -> None:
    """Replies to batches: one id for each message, the same number of them, the same form."""
    ours, apache = our_run.part(client, kind), apache_run.part(client, kind)

    def form(part: Part, n: int) -> dict[str, object]:
        return {name: len(value) if isinstance(value, str) else type(value)
                for name, value in part.sent[n].items()}  # fmt: skip

    assert {n: form(ours, n) for n in ours.sent} == {n: form(apache, n) for n in apache.sent}


@pytest.mark.apache
def test_apache_delivers_a_batch_of_timed_messages_at_once(apache_run: Run) -> None:
    """The fact that our batches are held against: if Apache learns to keep their times, this says so."""
    part = apache_run.part("java-4.9.8", "batch-timed")
    early = [one.n for one in part.messages if part.disk[one.n][0].store_ms < part.due_ms(one)]
    assert len(early) > len(part.messages) / 2
