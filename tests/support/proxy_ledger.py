"""Jobs for RocketMQ 5's clients through the proxy, what they print, and what is wrong with that."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from remoting.codes import RequestCode
from remoting.json_dialect import dumps
from remoting.messages.message import decode_record, record_size
from tests.support.wait import happens
from tests.support.wire import Wire, WireError

__all__ = [
    "ATTEMPTS",
    "BACKOFF",
    "COUNT",
    "NODE_BACKOFF",
    "Lines",
    "await_dead",
    "dead_letters",
    "lines_of",
    "prepare",
    "problems",
    "wanted",
    "wanted_dead",
]

ATTEMPTS = 3
"""Deliveries of a message that is never acknowledged, by the settings of its group; then the dead letters."""
COUNT = int(os.environ.get("TIMEWHEEL_PROXY_MESSAGES", "100"))
"""Messages of a large job: each takes a client, the proxy and the broker some calls. `./run soak` has more."""
BACKOFF = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 1000, 1000]}}
"""How long a push consumer waits until it tries again: the Python client takes whole seconds."""
NODE_BACKOFF = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 500_000, "max": 500_000, "multiplier": 1}}
"""The Node client knows no other type (without one it gives up after the first attempt), and takes seconds for ms."""
_TYPES = {"delay": "DELAY", "fifo": "FIFO", "deadfifo": "FIFO", "transaction": "TRANSACTION", "recall": "DELAY"}
_PULL, _NO_WAIT = 11, 4
Lines = dict[str, list[list[str]]]


def prepare(
    wire: Wire, jobs: Iterable[str], typed: bool, prefix: str = "", backoff: Mapping[str, object] = BACKOFF
) -> list[str]:
    """Make topic and group of each KIND/CONSUMER/COUNT; the jobs with their names.

    ``typed``: topics say what they take, as Apache's broker needs it for all but normal messages. ``backoff``: the
    policy of groups with dead letters.
    """
    whole = []
    for job in jobs:
        kind, consumer, _ = job.split("/")
        topic, group = f"T-{prefix}{kind}-{consumer}", f"G-{prefix}{kind}-{consumer}"
        fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
        fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
        if typed:
            fields["attributes"] = f"+message.type={_TYPES.get(kind, 'NORMAL')}"
        wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        config: dict[str, object] = {"groupName": group, "consumeMessageOrderly": kind in ("fifo", "deadfifo")}
        if kind.startswith("dead"):
            config |= {"retryMaxTimes": ATTEMPTS - 1, "groupRetryPolicy": backoff}
        wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps(config))
        whole.append(f"{job}/{topic}/{group}")
    return whole


def lines_of(output: str, jobs: Iterable[str]) -> Lines:
    """Sort a client's lines by job; the words behind the job's name."""
    found: Lines = {job: [] for job in jobs}
    for line in output.splitlines():
        words = line.split(" ")
        if words[0] in found:
            found[words[0]].append(words[1:])
    return found


def dead_letters(wire: Wire, group: str) -> list[str]:
    """The bodies in a group's topic of dead letters; none if there is no such topic."""
    topic = f"%DLQ%{group}"
    bodies: list[str] = []
    try:
        end = wire.max_offset(topic, 0)
    except WireError:
        return bodies
    while len(bodies) < end:
        fields = {"consumerGroup": "looks", "topic": topic, "queueId": 0, "queueOffset": len(bodies)}
        fields |= {"maxMsgNums": 32, "sysFlag": _NO_WAIT, "commitOffset": 0, "suspendTimeoutMillis": 0}
        fields |= {"subscription": "*", "subVersion": 0, "expressionType": "TAG"}
        body, at = wire.ask(_PULL, fields)[1], 0
        while at < len(body):
            bodies.append(decode_record(body, at).body.decode())
            at += record_size(body, at)
    return bodies


def wanted_dead(job: str) -> list[str]:
    """The bodies that end among the dead letters: each tenth, if that is what the job is about."""
    kind, _, count, *_ = job.split("/")
    return [str(number) for number in range(0, int(count), 10)] if kind.startswith("dead") else []


def await_dead(address: str, jobs: Iterable[str], all_dead: Path, within_s: float) -> None:
    """Create a file when all dead letters of the jobs are there, or when they have had their time."""
    dead = {f"%DLQ%{job.split('/')[-1]}": len(bodies) for job in jobs if (bodies := wanted_dead(job))}

    def are_there() -> bool:
        try:
            with Wire(address) as wire:
                return all(wire.max_offset(topic, 0) >= count for topic, count in dead.items())
        except (WireError, OSError):  # no dead letter yet, so no topic
            return False

    happens(are_there, within_s)
    all_dead.touch()


def wanted(job: str, bodies: Iterable[str]) -> dict[str, int]:
    """How often each message is to come."""
    kind, consumer, *_ = job.split("/")
    times, dead = {}, set(wanted_dead(job))
    for body in bodies:
        number = int(body)
        if (kind == "tag" and number % 3 == 1) or (kind == "sql" and number % 10 <= 4):
            continue
        times[body] = ATTEMPTS if body in dead else 2 if "again" in (kind, consumer) else 1
    return times


def problems(job: str, lines: list[list[str]], *, counted: bool = True) -> Iterator[str]:
    """What is wrong with the ledger of one job.

    ``counted``: the client counts the attempts of each message.
    """
    kind, _, number, *_ = job.split("/")
    count = int(number)
    sent = {"transaction": count * 9 // 10, "recall": count // 2}.get(kind, count)
    due = {body: int(due_ms) for word, body, due_ms, _ in lines if word == "sent"}
    got = [(body, int(at_ms), int(attempt)) for word, body, at_ms, attempt in lines if word == "got"]
    yield from (f"failed: {words}" for words in lines if words[0] == "failed")
    if len(due) != sent:
        yield f"{len(due)} sent, not {sent}"
    times, right = Counter(body for body, _, _ in got), wanted(job, due)
    if times != right:
        yield f"{len(right.keys() - times.keys())} lost, {len(times.keys() - right.keys())} that were not to come"
        yield f"came so often: {Counter(times.values())}, right is {Counter(right.values())}"
    early = [body for body, at_ms, _ in got if at_ms < due.get(body, 0)]
    if early:
        yield f"{len(early)} early"
    attempts: dict[str, list[int]] = {}
    for body, _, attempt in got:
        attempts.setdefault(body, []).append(attempt)
    uncounted = [body for body, seen in attempts.items() if seen != list(range(1, len(seen) + 1))]
    if counted and uncounted:
        yield f"{len(uncounted)} whose attempts are not 1, 2, 3"
    if kind.endswith("fifo"):
        for number_of_group in range(7):
            own = [int(body) for body, _, _ in got if int(body) % 7 == number_of_group]
            if own != sorted(own):
                yield f"group {number_of_group} is out of order"
