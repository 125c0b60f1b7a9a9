"""What mqadmin prints, brought to a form that two brokers can be compared in, and the differences that are meant."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["DIFFERENCES", "Difference", "normal_lines", "table_of", "unexplained"]

_LOG_LINE = re.compile(r"\d\d:\d\d:\d\d,\d+ \|-")
_STACK = re.compile(r"^\s+at |^\s+\.\.\. \d+ more|For more information, please visit|^See https?://")
_EMPTY_RETRIES = re.compile(r"^%RETRY%\S+ .*\b0 0 0( 0)? N/A$")
"""A consumer saves the offset 0 of its retry topic at some time after its start, or not yet."""
_MASKS = [
    (re.compile(r"127\.0\.0\.1:\d+"), "<address>"),
    (re.compile(r"\b[0-9A-F]{56}\b|\b[0-9A-F]{32}\b"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?"), "<time>"),
    (re.compile(r"@\d+#\d+"), "@<process>"),
    (re.compile(r"@(first|second|reset)-\d+"), r"@\1"),  # an instance name and nanoTime()
    (re.compile(r"\b\d{13}\b"), "<ms>"),
    (re.compile(r"\bV\d_\d+_\d+\b"), "<version>"),
    (re.compile(r"\d+\.\d\d(\d\d)?\b"), "<figure>"),
    (re.compile(r"^(broker-a\s+\d\s+true\s+)\d+$"), r"\1<figure>"),  # round trips of checkMsgSendRT
    (re.compile(r"\b\d+-\d+\(\d+\.\dw, "), "<timer>("),  # seconds and messages that Apache's own timer is behind
    # A record's checksum stands in this field, which Apache leaves at 0 and nobody reads: docs/decisions/0012
    (re.compile(r"preparedTransactionOffset=(0|-\d+)\b"), "preparedTransactionOffset=<none>"),
    (re.compile(r"[ \t]+"), " "),
]


def normal_lines(text: str) -> list[str]:
    """Mask what must differ between two runs, keep of an exception what it says, and sort: tables have no order."""
    lines = []
    for line in text.splitlines():
        if _LOG_LINE.match(line) or _STACK.search(line):
            continue
        for pattern, word in _MASKS:
            line = pattern.sub(word, line)
        if line.strip() and not _EMPTY_RETRIES.match(line.strip()):
            lines.append(line.strip())
    return sorted(lines)


def table_of(text: str, separator: str) -> dict[str, str]:
    """Read lines of ``name<separator>value``."""
    pairs = (re.split(rf"\s*{separator}\s*", line, maxsplit=1) for line in text.splitlines() if separator in line)
    return {pair[0].strip(): pair[1].strip() for pair in pairs if not _LOG_LINE.match(pair[0])}


@dataclass(frozen=True)
class Difference:
    """A line of one side that the other has not, or has otherwise: which command, which lines, and why."""

    command: str
    line: str
    why: str


_SYSTEM = "topics of parts that do not exist here: pop consumption, replicas, transactions in RocksDB"
_LOOK_UP = "a route look-up makes the retry topic of a group, as one of the clients needs it, so it is found, and empty"
DIFFERENCES = [
    Difference(
        "topicList", r"(DefaultCluster )?(rmq_sys_REVIVE_LOG|rmq_sys_SYNC_BROKER|RMQ_SYS_ROCKSDB)\w*(-a)?", _SYSTEM
    ),
    Difference("wipeWritePerm", r"wipe write perm of broker.* OK, \d+", f"counts topics: {_SYSTEM}"),
    Difference("addWritePerm", r"add write perm of broker.* OK, \d+", f"counts topics: {_SYSTEM}"),
    Difference(
        "cloneGroupOffset -s unheard-of",
        r"Caused by: .*MQClientException: CODE: (17|206) DESC: .*",
        _LOOK_UP,
    ),
    Difference("consumerProgress -g unheard-of", r"Caused by: .*MQClientException: CODE: (17|206) DESC: .*", _LOOK_UP),
    Difference(
        "setConsumeMode -b {B} -t %RETRY%",
        r"Caused by: .*MQClientException: CODE: 16 DESC: retry topic is not allowed to set mode(: %RETRY%pop-group)?",
        "the refusal names the topic",
    ),
    Difference("consumerConnection -g unheard-of", r"Caused by: .*Exception: CODE: (17|206) DESC: .*", _LOOK_UP),
]
"""The one table of what mqadmin deliberately shows otherwise."""


def unexplained(command: str, ours: list[str], apache: list[str], used: set[Difference]) -> list[str]:
    """Return the lines that one side alone has (``+`` ours, ``-`` Apache's) and no row allows; rows go to ``used``."""
    left = []
    for sign, one, other in (("+", ours, list(apache)), ("-", apache, list(ours))):
        for line in one:
            if line in other:
                other.remove(line)
                continue
            rows = [row for row in DIFFERENCES if command.startswith(row.command) and re.fullmatch(row.line, line)]
            used.update(rows)
            if not rows:
                left.append(f"{sign} {line}")
    return left
