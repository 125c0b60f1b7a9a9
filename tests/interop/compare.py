"""What a client shows of a message on our broker, set beside what it shows of the same message on Apache's.

Both are brought to a normal form first: what must differ between two runs (ports, times, positions, ids) becomes
a word that says whether it is right in itself, e.g. ``<in the send>`` for a born time between the beginning and
the end of the send. Everything else is compared as it is. What we want to differ stands in one table, `DIFFERENCES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.interop.run import Part
from tests.interop.workload import Kind, Outgoing
from tests.support.commitlog import Record

__all__ = ["DIFFERENCES", "Difference", "as_received", "as_stored", "differences", "unexplained"]

CLOCK_SLACK_MS = 5
ABSENT = "<absent>"
EMPTY = "any property without a value"
# Set by the client when it pulls or hands over, so they say nothing of the broker but that a number is there.
CLIENT_NUMBERS = {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME", "__MESSAGE_DECODED_TIME", "__CONSUMEOFFSET"}


def _timed(kind: Kind) -> bool:
    return kind.due in ("start", "deliver", "delay")


@dataclass(frozen=True)
class Difference:
    """One field that is meant to differ: for which kinds, what either side shows (a test of it), and why."""

    field: str
    kinds: Callable[[Kind], bool]
    ours: str
    apache: str
    why: str


DIFFERENCES = [
    Difference("__TW_ID", _timed, "present", "absent", "the delay id, which a restart looks for"),
    Difference("__TW_DUE", _timed, "present", "absent", "the due time, to the millisecond, whatever property set it"),
    Difference(
        "__TW_LEVEL",
        lambda kind: kind.due == "level",
        "present",
        "absent",
        "where a level copy came from (level:queue offset), so that a crash does not repeat it",
    ),
    Difference("TIMER_OUT_MS", _timed, "absent", "any", "Apache's own slot of its wheel, rounded to a second"),
    Difference("TIMER_ENQUEUE_MS", _timed, "absent", "any", "a stamp of Apache's timer threads"),
    Difference("TIMER_DEQUEUE_MS", _timed, "absent", "any", "a stamp of Apache's timer threads"),
    Difference("REAL_TOPIC", _timed, "absent", "any", "left over from its wait in Apache's rmq_sys_wheel_timer"),
    Difference("REAL_QID", _timed, "absent", "any", "left over from its wait in Apache's rmq_sys_wheel_timer"),
    Difference(
        "__STARTDELIVERTIME",
        lambda kind: kind.due == "start",
        "present",
        "absent",
        "Apache does not know it: the same message is sent there with TIMER_DELIVER_MS instead",
    ),
    Difference(
        "TIMER_DELIVER_MS",
        lambda kind: kind.due == "start",
        "absent",
        "present",
        "Apache does not know __STARTDELIVERTIME: the same message is sent there with this instead",
    ),
    Difference(
        EMPTY,
        lambda _: True,
        "present",
        "absent",
        "Apache drops pairs without a value when it writes properties anew; ours keeps them, as clients drop them too",
    ),
    Difference(
        "TIMER_DELAY_MS",
        lambda kind: kind.due == "delay",
        "absent",
        "any",
        "a relative time that stays on a message would delay every later send of it again: ours disarms it",
    ),
]
"""The one table of what is deliberately not as on Apache's broker."""


def _property(part: Part, message: Outgoing, name: str, value: str, sent: dict[str, Any]) -> str:
    if name in CLIENT_NUMBERS:
        return "<number>" if value.isdigit() else value
    if name in ("UNIQ_KEY", "__MSGID"):
        if value == sent.get("msg_id"):
            return "<the id that the sender was told>"
        # Made by the broker: from its IPv4 or its IPv6 address, as a client makes its own.
        return "<another id>" if re.fullmatch("[0-9A-F]{32}([0-9A-F]{24})?", value) else value
    if name == "__BORNTIMESTAMP":
        return _born(int(value), sent)
    if name == "__BORNHOST":
        return _host(value)
    if name == "__PARTITION":
        return value.split("#")[0] + "#<queue>"
    if name == "REAL_QID":
        return "<queue>" if value.isdigit() else value
    if _timed(part.kind) and value == str(part.base_ms + message.due_in_ms):
        return "<due>"
    return value


def _born(value: int, sent: dict[str, Any]) -> str:
    begin, end = sent["began_ms"] - CLOCK_SLACK_MS, sent["ended_ms"] + CLOCK_SLACK_MS
    # A one-way send returns before the client's own thread has stamped and written it.
    end += 5_000 if sent["status"] == "ONEWAY" else 0
    return "<in the send>" if begin <= value <= end else f"{value - sent['began_ms']:+d} ms from the send"


def _host(text: str) -> str:
    ip, port = text.rsplit(":", 1)
    return f"{ip}:<port>" if 0 < int(port) < 65536 else text


def as_received(part: Part, message: Outgoing, event: dict[str, Any], broker_port: int) -> dict[str, str]:
    """Bring what a client shows to normal form, flat: properties as ``properties.NAME``."""
    sent = part.sent[message.n]
    normal: dict[str, str] = {}
    for name, value in event.items():
        if name in ("event", "id", "received_ms", "store_ms", "queue_id", "queue_offset", "commit_log_offset"):
            continue
        if name in ("properties", "system_properties"):
            for key, text in value.items():
                normal[f"{name}.{key}"] = _property(part, message, key, text, sent)
        elif name == "msg_id":
            normal[name] = _id_form(value, event)
        elif name == "offset_msg_id":
            normal[name] = "<absent>" if value is None else f"<an id of {len(value)}>"
        elif name == "born_ms":
            normal[name] = _born(value, sent)
        elif name == "born_host":
            normal[name] = _host(value)
        elif name == "store_host":
            normal[name] = value.replace(f":{broker_port}", ":<the broker's port>")
        elif name == "partition":
            normal[name] = value.split("#")[0] + "#<queue>"
        elif name == "prepared_offset":
            normal[name] = _prepared(int(value))
        elif name == "start_deliver_ms":
            continue  # the property of that name is compared
        else:
            normal[name] = str(value)
    return normal


def _prepared(value: int) -> str:
    """The half message's offset; below zero it is a record's checksum, in a field that Apache leaves at 0."""
    return "0" if value < 0 else str(value)


def _id_form(value: str, event: dict[str, Any]) -> str:
    if value == event.get("properties", {}).get("UNIQ_KEY"):
        return "<the UNIQ_KEY>"
    return "<the offset id>" if value == event.get("offset_msg_id") else value


def as_stored(part: Part, message: Outgoing, record: Record, broker_port: int) -> dict[str, str]:
    """Bring a record on disk to the same normal form."""
    sent = part.sent[message.n]
    normal = {
        "topic": record.topic,
        "flag": str(record.flag),
        "sys_flag": str(record.sys_flag),
        "body": record.body_sha256,
        "reconsume_times": str(record.reconsume_times),
        "prepared_offset": str(record.prepared_offset),
        "born_ms": _born(record.born_ms, sent),
        "born_host": _host(record.born_host),
        "store_host": record.store_host.replace(f":{broker_port}", ":<the broker's port>"),
    }
    for name, value in record.properties.items():
        normal[f"properties.{name}"] = _property(part, message, name, value, sent)
    return normal


def differences(ours: dict[str, str], apache: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (field, ours, Apache's) for every field that differs; an absent one reads ``<absent>``."""
    for name in sorted(ours.keys() | apache.keys()):
        pair = ours.get(name, ABSENT), apache.get(name, ABSENT)
        if pair[0] != pair[1]:
            yield name, *pair


def _fits(wanted: str, value: str) -> bool:
    return wanted == "any" or (wanted == "absent") == (value == ABSENT)


def unexplained(kind: Kind, ours: dict[str, str], apache: dict[str, str], used: set[str]) -> list[tuple[str, str, str]]:
    """Return the differences that the table does not allow; rows that were needed go to ``used``."""
    rows = {row.field: row for row in DIFFERENCES if row.kinds(kind)}
    left = []
    for name, our_value, apache_value in differences(ours, apache):
        row = rows.get(EMPTY if our_value == "" else name.split(".", 1)[1]) if "properties." in name else None
        if row is not None and _fits(row.ours, our_value) and _fits(row.apache, apache_value):
            used.add(row.field)
        else:
            left.append((name, our_value, apache_value))
    return left
