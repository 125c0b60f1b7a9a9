"""A change or a count by query that does not come to its end, or passes something over: what was done is told."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

import pytest
from click.testing import CliRunner, Result

from broker.cli.pending import pending_command
from remoting.codes import RequestCode, ResponseCode
from timewheel_client import BrokerError, ClientError, MatchingResult, PendingClient, RequestTimeoutError, Which
from timewheel_client.pending.pending_client import NOT_KNOWN

Told = dict[str, Any] | Exception


def unread() -> BrokerError:
    return BrokerError(ResponseCode.SYSTEM_ERROR, "the message cannot be read; ask again", "127.0.0.1:1")


def done(count: int, cursor: str = "") -> dict[str, Any]:
    answers = [{"verdict": "done", "id": f"m{number}"} for number in range(count)]
    return {"verdicts": {"done": count} if count else {}, "answers": answers, "next": cursor, "count": count}


class Cluster(PendingClient):
    """A client whose brokers answer one call after the other as they are told to; an exception is raised."""

    def __init__(self, **answers: list[Told]) -> None:
        super().__init__("127.0.0.1:1")
        self.answers = answers
        self.asked: list[tuple[str, str]] = []

    async def __aenter__(self) -> Self:
        return self

    async def brokers(self) -> dict[str, str]:
        return {name: name for name in self.answers}

    async def _ask(self, address: str, _code: RequestCode, fields: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((address, fields.get("after", "")))
        answer = self.answers[address].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def moved(cluster: Cluster, **more: Any) -> MatchingResult:
    return asyncio.run(cluster.change_matching(Which(topic="T"), "move", by_ms=-5, dry_run=False, **more))


def typed(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, *words: str) -> Result:
    monkeypatch.setattr("broker.cli.pending.PendingClient", lambda *_, **__: cluster)
    return CliRunner().invoke(pending_command, words)


def test_a_second_call_that_fails_leaves_what_the_first_one_did() -> None:
    cluster = Cluster(a=[done(3, "7-1"), unread()], b=[done(1)])
    found = moved(cluster)
    assert (found.verdicts, [answer.id for answer in found.answers]) == ({"done": 3}, ["m0", "m1", "m2"])
    assert (found.unfinished, found.next) == ({"a": "7-1", "b": ""}, "a=7-1;b=")
    assert found.errors == {"a": str(unread())}
    assert cluster.asked == [("a", ""), ("a", "7-1")]
    cluster.answers["a"].append(done(2))
    rest = moved(cluster, after=found.next)
    assert (rest.verdicts, rest.errors, rest.next) == ({"done": 3}, {}, "")
    assert cluster.asked[2:] == [("a", "7-1"), ("b", "")]


def test_an_error_of_another_broker_leaves_what_the_first_one_did() -> None:
    found = moved(Cluster(a=[done(2)], b=[RequestTimeoutError("no reply")], c=[done(1)]))
    assert (found.verdicts, found.unfinished) == ({"done": 2}, {"b": "", "c": ""})
    assert found.errors == {"b": f"no reply; {NOT_KNOWN}"}


def test_an_error_of_the_first_call_is_raised() -> None:
    cluster = Cluster(a=[unread()], b=[done(1)])
    with pytest.raises(BrokerError, match="cannot be read"):
        moved(cluster)
    assert cluster.asked == [("a", "")]


@pytest.mark.parametrize("error", [unread(), RequestTimeoutError("no reply")], ids=["broker", "time"])
def test_a_count_that_fails_says_how_far_it_came(error: ClientError) -> None:
    with pytest.raises(type(error), match="counted before: 3 on a, 5 on b; the rest is behind 'a=7-1'"):
        asyncio.run(Cluster(a=[done(3, "7-1"), error], b=[done(4, "1-1"), done(1)]).count())
    with pytest.raises(BrokerError) as raised:
        asyncio.run(Cluster(a=[unread()]).count())
    assert str(raised.value) == str(unread())
    assert asyncio.run(Cluster(a=[done(3, "7-1"), done(2)], b=[done(0)]).count()) == {"a": 5, "b": 0}


def test_a_person_sees_what_was_done_and_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("move", "--topic", "T", "--by", "-5m", "--yes")
    shown = typed(monkeypatch, Cluster(a=[done(3, "7-1"), unread()]), *words)
    assert shown.exit_code == 1
    assert "3 done" in shown.stdout
    assert "an error ended it; more may match on a: go on with --after 'a=7-1'" in shown.stdout
    assert shown.stderr == f"Error: a: {unread()}\n"
    told = typed(monkeypatch, Cluster(a=[done(3, "7-1"), unread()]), *words, "--json")
    document = json.loads(told.stdout)
    assert (told.exit_code, document["next"], document["errors"]) == (1, "a=7-1", {"a": str(unread())})


def test_a_purge_that_fails_does_not_say_that_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = typed(monkeypatch, Cluster(a=[done(0), done(0, "7-1"), unread()]), "purge", "T", "--yes")
    assert (shown.exit_code, "nothing to purge" in shown.output) == (1, False)
    assert "nothing was changed" in shown.stdout and "on a: purge again" in shown.stdout
    assert "cannot be read" in shown.stderr


LOST = "3 in run 0000000007"
SAID = f"a: passed over, although they may match: {LOST}"


def lost(count: int, cursor: str = "") -> dict[str, Any]:
    return done(count, cursor) | {"unread": 3, "remark": LOST}


def test_what_brokers_have_passed_over_is_added_up() -> None:
    """A broker of an older version says nothing about it."""
    found = moved(Cluster(a=[lost(3, "7-1"), lost(2) | {"remark": "again"}], b=[done(1)], c=[lost(0)]))
    assert (found.verdicts, found.next, found.unread) == ({"done": 6}, "", 9)
    assert found.remarks == {"a": f"{LOST}; again", "c": LOST}
    assert moved(Cluster(a=[done(1)])).remarks == {}


@pytest.mark.parametrize("as_json", [False, True])
def test_a_person_sees_what_was_passed_over(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    words = ("cancel", "--topic", "T", "--yes", *["--json"] * as_json)
    shown = typed(monkeypatch, Cluster(a=[lost(2)]), *words)
    assert shown.exit_code == 1
    if as_json:
        document = json.loads(shown.stdout)
        assert (document["unread"], document["remarks"]) == (3, {"a": LOST})
    else:
        assert shown.stdout.splitlines()[-2:] == ["2 done", SAID]
    assert typed(monkeypatch, Cluster(a=[done(2)]), *words).exit_code == 0


@pytest.mark.parametrize("count", [0, 2])
def test_a_purge_that_passes_something_over_does_not_say_that_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    shown = typed(monkeypatch, Cluster(a=[lost(0), lost(count)]), "purge", "T", "--yes")
    assert (shown.exit_code, "nothing to purge" in shown.output, "nothing matches" in shown.output) == (1, False, False)
    assert ("2 done" if count else "nothing was changed") in shown.stdout
    assert SAID in shown.stdout


@pytest.mark.parametrize(("topic", "unread"), [("T", 3), ("T", 0), ("", 0)])
def test_a_forecast_says_what_is_in_no_bar(monkeypatch: pytest.MonkeyPatch, topic: str, unread: int) -> None:
    figures = {"total": 0, "overdue": 0, "later": 0, "exact": True, "step_ms": 60_000, "bars": []}
    cluster = Cluster(a=[{**figures, "unread": unread}], b=[figures])
    shown = typed(monkeypatch, cluster, "forecast", *(["--topic", topic] if topic else []))
    assert shown.exit_code == 0
    assert ("3 more in this range, of any topic, cannot be read" in shown.stdout) is bool(unread)


def test_a_count_says_what_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asyncio.run(Cluster(a=[lost(3, "7-1"), done(2)], b=[done(1)]).counted())
    assert (found.counts, found.unread, found.remarks) == ({"a": 5, "b": 1}, 3, {"a": LOST})
    shown = typed(monkeypatch, Cluster(a=[lost(3)], b=[done(1)]), "count")
    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (1, SAID)
    told = typed(monkeypatch, Cluster(a=[lost(3)], b=[done(1)]), "count", "--json")
    document = {"count": 4, "brokers": {"a": 3, "b": 1}, "unread": 3, "remarks": {"a": LOST}}
    assert (told.exit_code, json.loads(told.stdout)) == (1, document)
    assert typed(monkeypatch, Cluster(b=[done(1)]), "count").exit_code == 0
