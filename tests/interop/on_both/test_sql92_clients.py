"""SQL92 filters with stock clients, on our broker and on Apache's."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.peers import Peer
from tests.interop.workload import NUMBER
from tests.support.clients import Client
from tests.support.wire import Wire, WireError
from tests.support.wire_admin import create_group

Borrow = Callable[..., Client]
_names = itertools.count(1)

COLORS = ["red", "green", "blue", "it's"]
TABLE: list[tuple[str, Callable[[int], bool]]] = [
    ("number BETWEEN 10 AND 19", lambda n: 10 <= n <= 19),
    ("number NOT BETWEEN 10 AND 29 AND color <> 'blue'", lambda n: not 10 <= n <= 29 and n % 4 != 2),
    ("color IN ('red', 'it''s') AND number > 30", lambda n: n % 4 in (0, 3) and n > 30),
    ("odd IS NOT NULL OR number = 0", lambda n: n % 2 == 1 or n == 0),
    ("odd IS NULL AND NOT (color = 'red')", lambda n: n % 2 == 0 and n % 4 != 0),
    ("color CONTAINS 'e' AND color NOT STARTSWITH 'b' AND half >= 7.5", lambda n: n % 4 in (0, 1) and n / 2 >= 7.5),
    ("odd = TRUE and (number < 5 or number >= 35)", lambda n: n % 2 == 1 and (n < 5 or n >= 35)),
    ("color > 5 OR TRUE", lambda _: False),
    ("TAGS = 'B' AND half ENDSWITH '.5'", lambda n: n % 3 == 0 and n % 2 == 1),
]


def _messages(topic: str) -> list[dict[str, Any]]:
    return [
        {
            "n": n,
            "topic": topic,
            "body": base64.b64encode(f"body {n}".encode()).decode(),
            "tag": "B" if n % 3 == 0 else "A",
            "properties": {
                NUMBER: str(n),
                "number": str(n),
                "half": str(n / 2),
                "color": COLORS[n % 4],
                **({"odd": "true"} if n % 2 else {}),
            },
        }
        for n in range(40)
    ]


@pytest.mark.interop
@pytest.mark.parametrize("name", ["java-5.5.0", "java-4.9.8", "go-v2"])
def test_consumers_get_what_they_asked_for(peer: Peer, borrow: Borrow, name: str) -> None:
    """A consumer for each expression of a table, in groups of their own, and a last message that all get."""
    topic = f"filtered_{next(_names)}"
    peer.prepare(topic)
    client = borrow(name)
    table = TABLE if name != "go-v2" else TABLE[:4]
    for n, (expression, _) in enumerate(table):
        everyone = f"({expression}) OR last = 'yes'" if "color > 5" not in expression else expression
        client.consume(f"c{n}", f"{topic}_{n}", {topic: everyone}, sql="yes")
    client.produce("p", "producers", _messages(topic), threads=1)
    last = [{**_messages(topic)[0], "n": 99, "queue": queue} for queue in range(4)]
    for message in last:
        message["properties"] = {NUMBER: "99", "last": "yes", "number": "-1", "color": "none", "half": "-1"}
    client.produce("q", "last-producers", last, threads=1)
    for n, (expression, wanted) in enumerate(table):
        expected = sorted(number for number in range(40) if wanted(number))
        lasts = 4 if expected else 0  # the filter that always fails has no last message either
        events = client.wait_received(f"c{n}", len(expected) + lasts, 60) if expected else client.received(f"c{n}")
        found = sorted(int(event["properties"][NUMBER]) for event in events)
        assert found == expected + [99] * lasts, expression


@pytest.mark.interop
def test_a_bad_expression_is_told_to_the_client(peer: Peer, borrow: Borrow) -> None:
    """The Java client asks every broker before it starts (CHECK_CLIENT_CONFIG)."""
    topic = f"filtered_{next(_names)}"
    peer.prepare(topic)
    client = borrow("java-5.5.0")
    client.command("consume", id="c", group=f"{topic}_bad", topics={topic: "number >"}, sql="yes")
    with pytest.raises(AssertionError):
        client.wait("c", "consuming", 60)
    (failed,) = client.events("c", "failed")
    assert "CODE: 23" in failed["error"]
    assert ("Invalid MessageSelector. Expected" in failed["error"]) is peer.ours  # Apache's lists its parser's tokens
    assert ("at column 9" in failed["error"]) is peer.ours


def test_codes_of_pulls(peer: Peer) -> None:
    """What a pull with an expression of its own is answered; Apache's broker serves a bad one as if it said TRUE."""
    topic = f"filtered_{next(_names)}"
    peer.prepare(topic)
    with Wire(peer.address) as wire:
        create_group(wire, f"{topic}_g")

        def pull(expression: str, kind: str = "SQL92", offset: int = 0) -> int:
            fields = {
                "consumerGroup": f"{topic}_g",
                "topic": topic,
                "queueId": 0,
                "queueOffset": offset,
                "maxMsgNums": 32,
                "sysFlag": 4,
                "commitOffset": 0,
                "suspendTimeoutMillis": 0,
                "subscription": expression,
                "subVersion": 0,
                "expressionType": kind,
            }
            try:
                wire.ask(11, fields)
            except WireError as error:
                return error.code
            return 0

        assert pull("a = 1") == 19
        assert pull("") == 23
        assert pull("a =") == (23 if peer.ours else 19)
