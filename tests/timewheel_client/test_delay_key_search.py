"""A delay key over several brokers: who is asked, what is acted on, and which answer is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.codes import RequestCode
from timewheel_client import ConnectionFailedError, PendingClient
from timewheel_client.pending.named import told_first

WAITING = ("done", "changed", "refused")
PAST = ("too_late", "cancelled")


class Cluster(PendingClient):
    """A client whose brokers answer as they are told to; an exception is raised."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        super().__init__("127.0.0.1:1")
        self.answers = {f"b{number}": answer for number, answer in enumerate(answers)}
        self.asked: list[str] = []

    async def brokers(self) -> dict[str, str]:
        return {name: name for name in self.answers}

    async def _ask(self, address: str, _code: RequestCode, _fields: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(address)
        answer = self.answers[address]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize("first", ["already", "too_late", "unknown"])
def test_a_twin_that_waits_is_reached_whatever_the_first_broker_says(first: str) -> None:
    cluster = Cluster({"verdict": first, "when_ms": 7}, {"verdict": "done", "due_ms": 9})
    result = asyncio.run(cluster.cancel("key:k", topic="T"))
    assert cluster.asked == ["b0", "b1"]
    assert (result.verdict, result.broker, bool(result)) == ("done", "b1", True)
    assert [other.verdict for other in result.others] == ([] if first == "unknown" else [first])


def test_all_that_wait_are_acted_on_and_one_that_stays_makes_the_result_false() -> None:
    both = Cluster({"verdict": "done", "due_ms": 9}, {"verdict": "done", "due_ms": 8})
    result = asyncio.run(both.move("key:k", topic="T", by_ms=5))
    assert (result.broker, [other.broker for other in result.others], bool(result)) == ("b1", ["b0"], True)
    one = Cluster({"verdict": "changed", "due_ms": 9}, {"verdict": "done", "due_ms": 8})
    result = asyncio.run(one.cancel("key:k", topic="T", version=0))
    assert (result.verdict, bool(result)) == ("done", False)


def test_a_broker_that_does_not_answer_is_said_once_all_were_asked() -> None:
    cluster = Cluster(ConnectionFailedError("b0 is away"), {"verdict": "done"})
    with pytest.raises(ConnectionFailedError, match="b0 is away"):
        asyncio.run(cluster.cancel("key:k", topic="T"))
    assert cluster.asked == ["b0", "b1"]


def test_of_what_is_past_the_last_is_told() -> None:
    delivered, cancelled = {"verdict": "too_late", "when_ms": 5}, {"verdict": "already", "when_ms": 6}
    assert told_first([delivered, cancelled], "cancel") == [1, 0]
    assert told_first([delivered | {"when_ms": 6}, cancelled], "cancel") == [0, 1]
    assert told_first([{"verdict": "already", "when_ms": None}, {"verdict": "too_late"}], "cancel") == [1, 0]
    assert told_first([delivered, {"verdict": "already"}], "now") == [1, 0]  # it waits, and is due


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "verdict": st.sampled_from([*WAITING, *PAST, "already", "unknown"]),
                "when_ms": st.sampled_from([None, 0, 1, 2]),
                "due_ms": st.sampled_from([None, 1, 2]),
            }
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["", "cancel", "move", "now", "restart"]),
)
def test_nobody_who_knows_the_key_is_left_out_and_who_waits_comes_first(
    documents: list[dict[str, Any]], verb: str
) -> None:
    order = told_first(documents, verb)
    known = [place for place, document in enumerate(documents) if document["verdict"] != "unknown"]
    assert sorted(order) == (known or [0])
    waits = [documents[place]["verdict"] in (*WAITING, *(("already",) if verb != "cancel" else ())) for place in order]
    assert waits == sorted(waits, reverse=True)
    if any(documents[place]["verdict"] == "done" for place in known):
        assert documents[order[0]]["verdict"] == "done"
