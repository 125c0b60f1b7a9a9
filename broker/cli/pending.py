"""``timewheel pending …``: list, count and change pending messages on all brokers of a cluster."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from typing import Any, TypeVar, cast

import click

from broker.cli.common import account_option, namesrv_option, one_line_errors, pairs, say, secret_of, tls_options
from broker.cli.pending_tables import as_table, bars_of, bulk_lines, remark_lines, result_rows, topic_rows, waiting_rows
from remoting.printable import printable
from timewheel_client import ChangeResult, MatchingResult, PendingClient, ServiceClient, Which
from timewheel_client.net.client_core import now_ms
from timewheel_client.net.tls import Tls
from timewheel_client.values.times import parse_instant, parse_span

__all__ = ["pending_command"]

Function = TypeVar("Function", bound=Callable[..., Any])
Work = Callable[[PendingClient], Awaitable[None]]
LIST_LIMIT = 100
_TIME_FORMS = "ISO 8601 (local if it names no zone) or epoch ms"
_WHOM = """

    Each NAME is changed at once. Without NAME, the options choose the messages, and the command is a dry run unless
    --yes is given.
    """


@click.group("pending")
def pending_command() -> None:
    """List, count and change pending messages on all brokers of the cluster.

    NAME is a message id, a recall handle, a virtual offset, or key: followed by a delay key (with --topic).
    """


def _connected(function: Function) -> Function:
    """Add the options of a connection to a command, which gets a function ``run`` that runs work with a client."""

    @functools.wraps(function)
    def command(
        namesrv: str, access_key: str | None, tls: Tls, broker: str, service: bool, entry_topic: str, **more: Any
    ) -> None:
        secret_key = secret_of(access_key)
        make = functools.partial(ServiceClient, topic=entry_topic) if service else PendingClient

        def run(work: Work) -> None:
            async def connected() -> None:
                async with make(
                    namesrv, broker=broker, tls=tls, access_key=access_key, secret_key=secret_key
                ) as client:
                    await work(client)

            with one_line_errors():
                try:
                    asyncio.run(connected())
                except ValueError as error:  # a NAME that cannot be one
                    raise click.ClickException(str(error)) from None

        function(run=run, **more)

    only = click.option("--broker", default="", metavar="NAME", help="Only this broker.")
    beside = click.option("--service", is_flag=True, help="Ask a delay service. NAME is then BROKER/QUEUE/OFFSET.")
    topic = click.option("--entry-topic", default="TIMEWHEEL", show_default=True, help="With --service: its topic.")
    return cast(Function, namesrv_option(account_option(tls_options(only(beside(topic(command)))))))


def _which(function: Function) -> Function:
    """Add the options of a query to a command, which gets one value ``which`` for all of them."""

    @functools.wraps(function)
    def command(**given: Any) -> None:
        which = Which(
            topic=given.pop("topic") or "",
            tag=given.pop("tag") or "",
            key_prefix=given.pop("key_prefix") or "",
            due_from_ms=_instant(given.pop("due_from")),
            due_to_ms=_instant(given.pop("due_to")),
            accepted_from_ms=_instant(given.pop("accepted_from")),
            accepted_to_ms=_instant(given.pop("accepted_to")),
            properties=pairs(given.pop("properties"), "--property"),
        )
        function(which=which, **given)

    options = (
        click.option("--topic", help="Only messages of this topic."),
        click.option("--tag", help="Only messages with this tag."),
        click.option("--key-prefix", help="Only messages whose delay key begins with this text."),
        click.option("--due-from", help=f"Only messages due at or after this time: {_TIME_FORMS}.", metavar="TIME"),
        click.option("--due-to", help="Only messages due before this time.", metavar="TIME"),
        click.option("--accepted-from", help="Only messages accepted at or after this time.", metavar="TIME"),
        click.option("--accepted-to", help="Only messages accepted before this time.", metavar="TIME"),
        click.option(
            "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Only messages with it; repeatable."
        ),
    )
    decorated: Any = command
    for option in reversed(options):
        decorated = option(decorated)
    return cast(Function, decorated)


def _say_lines(text: str) -> None:
    for line in text.split("\n"):
        say(line)


_after_option = click.option("--after", default="", metavar="CURSOR", help="Continue at a cursor that was printed.")
_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value per line, for programs.")


def _instant(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_instant(text)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(str(error)) from None


@pending_command.command("list")
@_which
@click.option("--limit", type=click.IntRange(1), default=LIST_LIMIT, show_default=True, help="List at most this many.")
@_after_option
@_json_option
@_connected
def list_command(run: Callable[[Work], None], which: Which, limit: int, after: str, as_json: bool) -> None:
    """List pending messages in the order of their due times.

    If there are more than the limit, the last line has a cursor: continue with --after CURSOR. With --json the last
    line is {"next": CURSOR}.
    """

    async def work(client: PendingClient) -> None:
        page = await client.page(which, limit=limit, after=after)
        if as_json:
            for message in page.messages:
                document = asdict(message)
                say(json.dumps({name: document[name] for name in document if name not in ("body", "properties")}))
            if page.next:
                say(json.dumps({"next": page.next}))
            return
        rows = page.messages
        _say_lines(as_table(waiting_rows(rows, now_ms())) if rows else "nothing is pending that matches")
        if page.next:
            say(f"there are more: --after '{page.next}'")

    run(work)


@pending_command.command("count")
@_which
@_json_option
@_connected
def count_command(run: Callable[[Work], None], which: Which, as_json: bool) -> None:
    """Count pending messages."""

    async def work(client: PendingClient) -> None:
        found = await client.counted(which)
        total = sum(found.counts.values())
        if as_json:
            say(json.dumps({"count": total, "brokers": found.counts, "unread": found.unread, "remarks": found.remarks}))
        else:
            rows = [("broker", "pending"), *((name, str(count)) for name, count in found.counts.items())]
            _say_lines("\n".join((as_table([*rows, ("all", str(total))]), *remark_lines(found.remarks))))
        _fail_unless(not found.unread)

    run(work)


@pending_command.command("topics")
@_which
@_json_option
@_connected
def topics_command(run: Callable[[Work], None], which: Which, as_json: bool) -> None:
    """Count pending messages by topic: of a delay service (--service). A broker offers this over HTTP only."""

    async def work(client: PendingClient) -> None:
        if not isinstance(client, ServiceClient):
            raise click.UsageError("topics needs --service; for a broker, use count, or GET /api/v1/topics over HTTP")
        rows = await client.topics(which)
        if as_json:
            for row in rows:
                say(json.dumps(asdict(row)))
        else:
            _say_lines(as_table(topic_rows(rows)) if rows else "nothing is pending that matches")

    run(work)


@pending_command.command("get")
@click.argument("name")
@click.option("--topic", default="", help="The message's topic.")
@_json_option
@_connected
def get_command(run: Callable[[Work], None], name: str, topic: str, as_json: bool) -> None:
    """Show one message with its properties and body."""

    async def work(client: PendingClient) -> None:
        found = await client.get(name, topic=topic)
        if as_json:
            say(json.dumps(_plain(found)))
        else:
            _say_lines(as_table(result_rows(_each([found]), now_ms())))
            if found.message is not None:
                for property_name, value in found.message.properties.items():
                    say(f"  {property_name} = {value}")
                say(f"  body, {len(found.message.body)} bytes: {found.message.body[:200]!r}")
        _fail_unless(found.verdict == "done")

    run(work)


def _plain(result: ChangeResult) -> dict[str, Any]:
    document = asdict(result)
    if result.message is not None:
        document["message"]["body"] = result.message.body.decode("latin-1")
    document["others"] = [_plain(other) for other in result.others]
    return document


def _each(results: Iterable[ChangeResult]) -> list[ChangeResult]:
    """The results with those of further brokers that know the same delay key."""
    return [one for result in results for one in (result, *result.others)]


def _fail_unless(good: bool) -> None:
    if not good:
        raise SystemExit(1)


def _change(verb: str, text: str, *options: Callable[[Any], Any]) -> None:
    """Register a command that changes messages: those named at once, those that match a query with ``--yes``."""

    @_which
    @click.argument("names", nargs=-1, metavar="[NAME]…")
    @click.option("--limit", type=click.IntRange(1), help="Change at most this many (of a query).")
    @_after_option
    @click.option("--version", type=click.IntRange(0), help="With NAME: change it only if it has this version.")
    @click.option("--dry-run", is_flag=True, help="Only show what would be changed (the default for a query).")
    @click.option("--yes", is_flag=True, help="Really change all messages that match the query.")
    @_json_option
    @_connected
    def command(
        run: Callable[[Work], None],
        which: Which,
        names: tuple[str, ...],
        limit: int | None,
        after: str,
        version: int | None,
        dry_run: bool,
        yes: bool,
        as_json: bool,
        **times: Any,
    ) -> None:
        due_ms, by_ms = _times(verb, times.get("to"), times.get("by"))
        if dry_run and yes:
            raise click.UsageError("--dry-run and --yes exclude each other")
        if names and after:
            raise click.UsageError("--after goes with a query, not with a NAME")
        if not names and which.width_fault:
            raise click.UsageError(f"no message is named, and {which.width_fault}")

        async def work(client: PendingClient) -> None:
            if names:
                results = [
                    await _one(client, verb, name, which.topic, version, due_ms, by_ms, dry_run) for name in names
                ]
                _show(results, as_json)
                _fail_unless(all(results) or dry_run)
                return
            found = await client.change_matching(
                which, verb, limit=limit, dry_run=not yes, due_ms=due_ms, by_ms=by_ms, after=after
            )
            _show_bulk(found, as_json)
            _fail_of_error(found)
            _fail_unless("undecided" not in found.verdicts and not found.unread)

        run(work)

    command.__doc__ = text
    for option in options:
        command = option(command)
    pending_command.command(verb)(command)


async def _one(
    client: PendingClient,
    verb: str,
    name: str,
    topic: str,
    version: int | None,
    due_ms: int | None,
    by_ms: int | None,
    dry_run: bool,
) -> ChangeResult:
    if dry_run:
        return await client.get(name, topic=topic)
    if verb == "move":
        return await client.move(name, topic=topic, version=version, due_ms=due_ms, by_ms=by_ms)
    changes = {"cancel": client.cancel, "now": client.now, "restart": client.restart}
    return await changes[verb](name, topic=topic, version=version)


def _times(verb: str, to: str | None, by: str | None) -> tuple[int | None, int | None]:
    if verb == "move" and (to is None) == (by is None):
        raise click.UsageError("move takes either --to TIME or --by SPAN")
    if by is None:
        return _instant(to), None
    try:
        span = parse_span(by.removeprefix("-"))
    except (ValueError, OverflowError) as error:
        raise click.UsageError(str(error)) from None
    return None, -span if by.startswith("-") else span


def _show(results: list[ChangeResult], as_json: bool) -> None:
    if as_json:
        for result in results:
            say(json.dumps(_plain(result)))
    else:
        _say_lines(as_table(result_rows(_each(results), now_ms())))


def _show_bulk(found: MatchingResult, as_json: bool, go_on: str = "") -> None:
    if as_json:
        say(json.dumps({**asdict(found), "answers": [_plain(answer) for answer in found.answers], "next": found.next}))
        return
    for line in bulk_lines(found, now_ms(), go_on):
        say(line)


def _fail_of_error(found: MatchingResult) -> None:
    """Raises click.ClickException if an error ended a bulk change in the middle."""
    if found.errors:
        raise click.ClickException(printable("; ".join(f"{broker}: {text}" for broker, text in found.errors.items())))


_change("cancel", f"Cancel messages. {_WHOM}")
_change("now", f"Deliver messages now. {_WHOM}")
_change("restart", f"Make messages wait for their first delay again, from now on. {_WHOM}")
_change(
    "move",
    f"Change the due time of messages. {_WHOM}",
    click.option("--by", metavar="SPAN", help="Move the due time by this span: 47m or 1h30m later, -5m earlier."),
    click.option("--to", metavar="TIME", help=f"The new due time: {_TIME_FORMS}."),
)


@pending_command.command("purge")
@click.argument("topic")
@click.option("--dry-run", is_flag=True, help="Only show what would be cancelled (the default).")
@click.option("--yes", is_flag=True, help="Cancel the messages.")
@_json_option
@_connected
def purge_command(run: Callable[[Work], None], topic: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Cancel the pending messages of a deleted TOPIC. The exit status is 1 if there are none, or some may be left."""
    if dry_run and yes:
        raise click.UsageError("--dry-run and --yes exclude each other")

    async def work(client: PendingClient) -> None:
        found = await client.change_matching(Which(topic=topic), "cancel", dry_run=not yes, purge=True)
        if as_json or found.verdicts or found.errors or found.unread:
            _show_bulk(found, as_json, "purge again")
        else:
            say(f"nothing to purge: no broker has topic {topic!r}, and no message of it is pending")
        _fail_of_error(found)
        _fail_unless(bool(found.verdicts) and not found.unread)

    run(work)


@pending_command.command("forecast")
@click.option("--topic", default="", help="Only messages of this topic.")
@click.option("--from", "from_text", metavar="TIME", help="Begin of the forecast.  [default: now]")
@click.option("--for", "span", default="1h", show_default=True, metavar="SPAN", help="Length of the forecast.")
@click.option("--bars", type=click.IntRange(1, 2000), default=60, show_default=True, help="Number of bars.")
@_json_option
@_connected
def forecast_command(
    run: Callable[[Work], None], topic: str, from_text: str | None, span: str, bars: int, as_json: bool
) -> None:
    """Show how many messages come due in each part of a time range."""
    begin_ms = now_ms() if from_text is None else _instant(from_text) or 0
    try:
        length_ms = parse_span(span)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(str(error)) from None

    async def work(client: PendingClient) -> None:
        found = await client.forecast(begin_ms, begin_ms + length_ms, bars, topic=topic)
        _say_lines(json.dumps(asdict(found)) if as_json else bars_of(found, topic))

    run(work)
