"""Jobs for RocketMQ 5's clients through the proxy, what they print, and what is wrong with that."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator

from remoting.codes import RequestCode
from remoting.json_dialect import dumps
from remoting.messages.message import decode_record, record_size
from tests.support.wire import Wire

__all__ = ["ATTEMPTS", "COUNT", "Lines", "dead_letters", "lines_of", "prepare", "problems", "wanted"]

ATTEMPTS = 3
"""Deliveries of a message that is never acknowledged, by the settings of its group; then the dead letters."""
COUNT = int(os.environ.get("TIMEWHEEL_PROXY_MESSAGES", "100"))
"""Messages of a large job: each takes a client, the proxy and the broker some calls. `./run soak` has more."""
_TYPES = {"delay": "DELAY", "fifo": "FIFO", "transaction": "TRANSACTION", "recall": "DELAY"}
_PULL, _NO_WAIT = 11, 4
Lines = dict[str, list[list[str]]]


def prepare(wire: Wire, jobs: Iterable[str], typed: bool, prefix: str = "") -> list[str]:
    """Make topic and group of each KIND/CONSUMER/COUNT; the jobs with their names.

    ``typed``: topics say what they take, as Apache's broker needs it for all but normal messages.
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
            policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [500, 500, 500]}}
            config |= {"retryMaxTimes": ATTEMPTS - 1, "groupRetryPolicy": policy}
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
    """The bodies in a group's topic of dead letters."""
    topic = f"%DLQ%{group}"
    bodies: list[str] = []
    for queue_id in range(1):
        end = wire.max_offset(topic, queue_id)
        while len(bodies) < end:
            fields = {"consumerGroup": "looks", "topic": topic, "queueId": queue_id, "queueOffset": len(bodies)}
            fields |= {"maxMsgNums": 32, "sysFlag": _NO_WAIT, "commitOffset": 0, "suspendTimeoutMillis": 0}
            fields |= {"subscription": "*", "subVersion": 0, "expressionType": "TAG"}
            body, at = wire.ask(_PULL, fields)[1], 0
            while at < len(body):
                bodies.append(decode_record(body, at).body.decode())
                at += record_size(body, at)
    return bodies


def wanted(job: str, bodies: Iterable[str]) -> dict[str, int]:
    """How often each message is to come."""
    kind, consumer, *_ = job.split("/")
    times = {}
    for body in bodies:
        number = int(body)
        if (kind == "tag" and number % 3 == 1) or (kind == "sql" and number % 10 <= 4):
            continue
        dead = kind.startswith("dead") and number % 10 == 0
        times[body] = ATTEMPTS if dead else 2 if "again" in (kind, consumer) else 1
    return times


def problems(job: str, lines: list[list[str]]) -> Iterator[str]:
    """What is wrong with the ledger of one job."""
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
    if kind == "fifo":
        for number_of_group in range(7):
            own = [int(body) for body, _, _ in got if int(body) % 7 == number_of_group]
            if own != sorted(own):
                yield f"group {number_of_group} is out of order"
