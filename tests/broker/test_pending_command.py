"""``timewheel pending``: what a person types and reads, on a broker with real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from broker.broker import Broker
from broker.cli.pending import pending_command
from broker.cli.pending_tables import result_rows
from remoting.codes import RequestCode
from tests.broker.test_broker import config_in
from timewheel_client import BrokerError, ChangeResult, ClientError, MessageQueue, PendingClient, Producer, Which

HOUR_S = 3600


@contextlib.asynccontextmanager
async def running(tmp_path: Path) -> AsyncIterator[str]:
    broker = Broker(config_in(tmp_path / "store", plugins=["delay"]))
    await broker.start()
    try:
        yield f"127.0.0.1:{broker.namesrv_port}"
    finally:
        await broker.stop()


async def typed(namesrv: str, *words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, pending_command, [*words, "--namesrv", namesrv])


def test_a_person_lists_gets_moves_and_cancels(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as namesrv:
            async with Producer(namesrv) as producer:
                sent = [
                    await producer.send(
                        "T", b"body\0", delay=HOUR_S, tags="g\x1b[31m", properties={"__DELAYKEY": f"o-{n}"}
                    )
                    for n in range(3)
                ]
            listed = await typed(namesrv, "list")
            assert listed.exit_code == 0, listed.output
            lines = listed.output.splitlines()
            assert len(lines) == 4
            assert lines[0].split()[:2] == ["id", "topic"]
            assert "\x1b" not in listed.output
            rows = [json.loads(line) for line in (await typed(namesrv, "list", "--json")).output.splitlines()]
            assert [row["key"] for row in rows] == ["o-0", "o-1", "o-2"]
            name = sent[0].offset_message_id
            assert rows[0]["id"] == name
            shown = await typed(namesrv, "get", name)
            assert "__DELAYKEY = o-0" in shown.output
            moved = await typed(namesrv, "move", name, "--by", "-30m", "--version", "0", "--json")
            assert json.loads(moved.output)["version"] == 1
            for into in (("--to", "2020-01-01"), ("--by", "-2h")):
                past = await typed(namesrv, "move", name, *into)
                assert (past.exit_code, "the verb is now" in past.output) == (1, True), past.output
            again = await typed(namesrv, "move", name, "--by", "30m", "--version", "0")
            assert (again.exit_code, again.output.splitlines()[1].split()[0]) == (1, "changed")
            for verdict in ("done", "already"):
                cancelled = await typed(namesrv, "cancel", name)
                assert (cancelled.exit_code, cancelled.output.splitlines()[1].split()[0]) == (0, verdict)
            counted = await typed(namesrv, "count", "--topic", "T", "--json")
            assert json.loads(counted.output)["count"] == 2

    asyncio.run(story())


def test_bulk_is_dry_until_somebody_says_yes(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as namesrv:
            async with Producer(namesrv) as producer:
                for n in range(5):
                    await producer.send("T", b"b", delay=HOUR_S, tags=f"g{n % 2}")
            dry = await typed(namesrv, "cancel", "--topic", "T", "--tag", "g0")
            assert "3 messages would be changed; none was" in dry.output
            async with PendingClient(namesrv) as pending:
                assert sum((await pending.count()).values()) == 5
                done = await typed(namesrv, "cancel", "--topic", "T", "--tag", "g0", "--yes")
                assert "3 done" in done.output
                assert sum((await pending.count()).values()) == 2
                assert [m.tag async for m in pending.list(Which(topic="T"))] == ["g1", "g1"]
                with pytest.raises(BrokerError, match="could change everything"):
                    await pending.change_matching(Which(), "cancel", dry_run=False)
                with pytest.raises(BrokerError, match="exists"):
                    await pending.change_matching(Which(topic="T"), "cancel", dry_run=False, purge=True)
            refused = await typed(namesrv, "purge", "T", "--yes")
            assert (refused.exit_code, "exists" in refused.output) == (1, True)
            for name in ("Never", "T\u00e4\x1b", "x" * 5000):
                for words in ((), ("--yes",), ("--json",)):
                    nothing = await typed(namesrv, "purge", name, *words)
                    assert nothing.exit_code == 1, nothing.output
                    assert "nothing to purge" in nothing.output or "--json" in words, nothing.output
                    assert "\x1b" not in nothing.output
            assert "needs the name" in (await typed(namesrv, "purge", "")).output

    asyncio.run(story())


def test_a_cursor_leads_through_the_lists_of_all_brokers(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path / "a") as namesrv:
            second = Broker(config_in(tmp_path / "b", plugins=["delay"], namesrv_addr=[namesrv], broker_name="b%|"))
            await second.start()
            try:
                await told(namesrv)
            finally:
                await second.stop()

    async def told(namesrv: str) -> None:
        async with PendingClient(namesrv) as pending, Producer(namesrv) as producer:
            brokers = await pending.brokers()
            assert len(brokers) == 2
            for address in brokers.values():
                fields = {
                    "topic": "T",
                    "readQueueNums": "1",
                    "writeQueueNums": "1",
                    "perm": "6",
                    "defaultTopic": "TBW102",
                }
                more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
                await pending._core.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields | more, timeout_ms=9_000)
            queues = [MessageQueue("T", name, 0) for name in brokers]
            for n in range(7):
                await producer.send("T", b"b", delay=HOUR_S + n // 3, queue=queues[n % 3 % 2], tags=f"g{n}")
            whole = [message.id async for message in pending.list()]
            page = await pending.page(limit=7)
            assert ([message.id for message in page.messages], page.next) == (whole, "")
        seen: list[str] = []
        more: tuple[str, ...] = ()
        for size in (3, 3, 1):
            lines = (await typed(namesrv, "list", "--limit", "3", "--json", *more)).output.splitlines()
            rows = [json.loads(line) for line in lines]
            seen += [row["id"] for row in rows if "id" in row]
            assert len(rows) == size + (size == 3)
            more = ("--after", rows[-1].get("next", ""))
        assert (seen, more[1]) == (whole, "")
        shown = await typed(namesrv, "list", "--limit", "3")
        assert shown.output.splitlines()[-1].startswith("there are more: --after '")
        async with PendingClient(namesrv) as pending:
            *_, last_broker = (await pending.brokers()).values()
            await pending._core.ask(last_broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, timeout_ms=9_000)
        half = await typed(namesrv, "purge", "T", "--yes")  # one broker has the topic still: nothing is purged
        assert (half.exit_code, "exists" in half.output) == (1, True)
        assert json.loads((await typed(namesrv, "count", "--json")).output)["count"] == 7
        first = await typed(namesrv, "cancel", "--topic", "T", "--limit", "2", "--yes", "--json")
        rest = json.loads(first.output)["next"]
        assert rest
        last = await typed(namesrv, "cancel", "--topic", "T", "--yes", "--after", rest)
        assert "5 done" in last.output
        for bad in ("x", "x=1", "a=;a="):
            refused = await typed(namesrv, "list", "--after", bad)
            assert refused.exit_code == 1, refused.output
            assert "cursor" in refused.output

    asyncio.run(story())


def test_a_broker_that_tells_no_cursors_is_listed_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = PendingClient._ask

    async def older(self: PendingClient, *asked: Any) -> Any:
        answer = await plain(self, *asked)
        for row in answer.get("messages", ()):
            del row["after"]
        return answer

    async def story() -> None:
        async with running(tmp_path) as namesrv, PendingClient(namesrv) as pending:
            async with Producer(namesrv) as producer:
                for _ in range(3):
                    await producer.send("T", b"b", delay=HOUR_S)
            monkeypatch.setattr(PendingClient, "_ask", older)
            assert len([message async for message in pending.list()]) == 3
            page = await pending.page(limit=3)
            assert (len(page.messages), page.next) == (3, "")
            with pytest.raises(ClientError, match="older version"):
                await pending.page(limit=2)

    asyncio.run(story())


@pytest.mark.parametrize(
    "words",
    [
        ("cancel",),
        ("cancel", "x", "--after", "y"),
        ("cancel", "--yes"),
        ("cancel", "--due-from", "2030-01-01", "--yes"),
        ("cancel", "--key-prefix", "", "--due-to", "9999-01-01"),
        ("cancel", "x", "--dry-run", "--yes"),
        ("move", "x"),
        ("move", "x", "--by", "soon"),
        ("move", "x", "--to", "1700000000"),
        ("move", "x", "--by", "9" * 5000 + "h"),
        ("list", "--due-from", "9" * 5000),
        ("list", "--limit", "0"),
        ("list", "--property", "novalue"),
        ("forecast", "--bars", "5000"),
        ("forecast", "--for", "a while"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anybody_is_asked(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(pending_command, [*words, "--namesrv", "127.0.0.1:1"])
    assert result.exit_code == 2, result.output


def test_a_forecast_of_a_topic_says_nothing_of_what_it_does_not_count(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as namesrv:
            async with Producer(namesrv) as producer:
                for delay in (HOUR_S / 2, 2 * HOUR_S, 3 * HOUR_S):
                    await producer.send("Orders", b"b", delay=delay)
            of_all = (await typed(namesrv, "forecast")).output.splitlines()[0]
            assert of_all.startswith("3 pending: 0 due before ")
            assert ", 2 due later than " in of_all
            of_topic = (await typed(namesrv, "forecast", "--topic", "Orders")).output.splitlines()[0]
            assert of_topic.startswith("1 pending of Orders, due from ")
            assert "later" not in of_topic

    asyncio.run(story())


@pytest.mark.parametrize("verb", ["get", "cancel"])
def test_a_name_that_is_none_of_an_entry_is_told_in_one_line(tmp_path: Path, verb: str) -> None:
    """With --service it ended with a traceback."""

    async def story() -> None:
        async with running(tmp_path) as namesrv:
            told = await typed(namesrv, verb, "nonsense", "--service")
            assert told.exit_code == 1 and isinstance(told.exception, SystemExit)
            assert "nonsense: an entry is named BROKER/QUEUE/OFFSET" in told.output and told.output.count("\n") == 1

    asyncio.run(story())


def test_a_verdict_without_a_due_time_shows_none() -> None:
    """A service's verdict on what is cancelled or unknown has none; it was shown as due in 1970."""
    head, row = result_rows([ChangeResult(verdict="unknown", id="broker-a/0/9")], 1_700_000_000_000)
    shown = dict(zip(head, row, strict=True))
    assert (shown["verdict"], shown["id"], shown["due"], shown["in"]) == ("unknown", "broker-a/0/9", "", "")
