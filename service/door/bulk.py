"""Changes by a query: matching entries are listed, and each gets a command of its own, with a verdict of its own.

::

    list (as `GET pending` does) ─► first row, second row, … ─► a record each, 16 at a time ─► verdicts, counted
                                     └ the cursor: after the last row of each shard that got its command

The list covers the shards that the instance owns or follows, and may be some seconds old. The owner of each shard
decides, so a ``done`` is definite, whatever the list said. The time of a call is bounded: `LOOK_MS` to list, `BEGIN_MS`
in which commands begin, `VERDICT_S` for a verdict. A command without a verdict by then is ``undecided``: it is stored
and decided, or decided later by the owner of the shard, or it was never stored. Its shard gets no further command in
this call.

**A call may be repeated with the same cursor**, after any failure and any takeover. Each command names an entry and its
final state: cancelled, or due at a fixed time. So a second command changes nothing more. An interval is turned into a
fixed time when the entry is listed. The range of due times must have both ends and must not be longer than the
interval, so a moved entry does not match again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from http_door.queries import FILTERS, known_only, limit_of, moment_of, query_of
from http_door.work import BusyError
from remoting.pending_rules import PAST_MS, past_fault
from service.door.coverage import ShardSight
from service.door.orders import NoVerdictError, OrderDesk, Orders, UnreachableError
from service.door.reading import cursor_of_shards, cursors_of_shards, listed
from store.put.pending_api import PAGE_MAX, PendingError, PendingQuery
from store.put.pending_cursor import cursor_text
from timewheel_client import ChangeResult

__all__ = ["BULK_MAX", "UNDECIDED", "BulkDesk", "BulkOrder", "Gathered", "gathered", "read_bulk"]

BULK_MAX = 1000
"""Most messages that one call changes."""
USUAL_CHANGES = 100
LOOK_MS = 4_000
BEGIN_MS = 4_000
VERDICT_S = 8.0
"""Longer than a takeover takes, from a kill to the first verdict."""
AT_ONCE = 16
UNDECIDED = "undecided"
_STANDS = "if the command was stored, it stands and will be decided"


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOrder:
    """The order. ``due_ms`` (epoch ms) or ``by_ms``: only for the verb ``move``."""

    query: PendingQuery
    verb: str
    limit: int = USUAL_CHANGES
    dry_run: bool = True
    after: str = ""
    due_ms: int | None = None
    by_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The matching rows in due order, and for each shard the cursors before the first and after the last row."""

    rows: Sequence[Mapping[str, Any]]
    begun: Mapping[str, str | None]
    behind: Mapping[str, str | None]
    firsts: Mapping[str, int] = field(default_factory=dict)
    coverage: Mapping[str, Any] = field(default_factory=dict)

    def next(self, asked: Sequence[bool]) -> str | None:
        """The cursor after the rows that got a command, which are the first ones of each shard."""
        cursors = dict(self.behind)
        stopped: set[str] = set()
        last: dict[str, str | None] = dict(self.begun)
        for row, was_asked in zip(self.rows, asked, strict=True):
            shard = row["shard"]
            if not was_asked:
                stopped.add(shard)
            elif shard not in stopped:
                last[shard] = cursor_text((row["due_ms"], self.firsts[shard] + int(row["offset"])))
        return cursor_of_shards(cursors | {shard: last[shard] for shard in stopped})


def read_bulk(verb: str, given: Mapping[str, Any], now_ms: int) -> BulkOrder:
    """Read an order. Raises PendingError."""
    times = frozenset(("due_ms", "by_ms")) if verb == "move" else frozenset[str]()
    known_only(given, frozenset(("query", "dry_run", "limit", "after")) | times)
    filters, dry_run, after = given.get("query", {}), given.get("dry_run", True), given.get("after") or ""
    if not isinstance(filters, dict) or not isinstance(dry_run, bool) or not isinstance(after, str):
        raise PendingError("query is an object of filters, dry_run true or false, after the next of an earlier answer")
    known_only(filters, FILTERS - {"key_prefix"})
    properties = filters.get("property", [])
    query = query_of(filters, properties if isinstance(properties, list) else [properties])
    if query.width_fault:
        raise PendingError(query.width_fault)
    due_ms, by_ms = moment_of(given) if verb == "move" else (None, None)
    fault = "" if due_ms is None else past_fault("due_ms", due_ms, now_ms)
    if by_ms is not None:
        fault = _shift_fault(query, by_ms)
    if fault:
        raise PendingError(fault)
    limit = limit_of(given, USUAL_CHANGES, BULK_MAX)
    return BulkOrder(query=query, verb=verb, limit=limit, dry_run=dry_run, after=after, due_ms=due_ms, by_ms=by_ms)


def _shift_fault(query: PendingQuery, by_ms: int) -> str:
    """Why an interval is refused: a moved entry must not match again.

    >>> _shift_fault(PendingQuery(due_from_ms=5_000, due_to_ms=6_000), -1_000)
    ''
    """
    first, last = query.due_from_ms, query.due_to_ms
    if by_ms == 0:
        return "by_ms=0 moves nothing"
    if first is None or last is None or last - first > abs(by_ms):
        return (
            f"by_ms={by_ms} needs due_from and due_to, at most {abs(by_ms)} ms apart: otherwise a moved message still "
            "matches, and a repeated call moves it again. Or give due_ms"
        )
    return ""


def gathered(sights: Sequence[ShardSight], order: BulkOrder, mono_ms: Callable[[], int]) -> Gathered:
    """List matching entries, for about `LOOK_MS` at most. Raises PendingError, NotReadyError, BusyError."""
    begun = cursors_of_shards(order.after, sights)
    until_ms = mono_ms() + LOOK_MS
    rows: list[Mapping[str, Any]] = []
    after: str | None = order.after
    page: dict[str, Any] = {}
    while after is not None and len(rows) < order.limit and (not page or mono_ms() < until_ms):
        page = listed(sights, order.query, min(PAGE_MAX, order.limit - len(rows)), after, mono_ms, LOOK_MS)
        rows += page["messages"]
        after = page["next"]
    behind = dict.fromkeys(begun) if after is None else cursors_of_shards(after, sights)
    return Gathered(
        rows=rows,
        begun=begun,
        behind=behind,
        firsts={sight.name: sight.first for sight in sights},
        coverage={name: page[name] for name in ("whole", "shards")},
    )


class BulkDesk:
    """Gives the commands of a bulk change, one change at a time. For the door's loop.

    Args:
        desk: Sends one command.
        wall_ms, mono_ms: Read the clocks.
    """

    def __init__(self, desk: OrderDesk, wall_ms: Callable[[], int], mono_ms: Callable[[], int]) -> None:
        self._desk = desk
        self._wall_ms, self._mono_ms = wall_ms, mono_ms
        self._busy = False

    async def change(self, found: Gathered, order: BulkOrder) -> dict[str, Any]:
        """Change the listed entries; returns the answer. Raises BusyError; then nothing was changed."""
        if order.dry_run:
            past_ms = self._wall_ms() - PAST_MS
            answers = [_told(row, *_would(row, order, past_ms)) for row in found.rows]
            return _document(found, order, answers, [True] * len(answers))
        if self._busy:
            raise BusyError("another bulk change is under way, and only one may be: nothing was changed, ask again")
        self._busy = True
        try:
            told = await self._give_all(found.rows, order)
        finally:
            self._busy = False
        return _document(found, order, [one for one in told if one is not None], [one is not None for one in told])

    async def _give_all(self, rows: Sequence[Mapping[str, Any]], order: BulkOrder) -> list[dict[str, Any] | None]:
        """One answer for each row that got its command; None for the others."""
        told: list[dict[str, Any] | None] = [None] * len(rows)
        until_ms = self._mono_ms() + BEGIN_MS
        silent: set[str] = set()
        left = iter(enumerate(rows))

        async def work() -> None:
            for at, row in left:
                if at and self._mono_ms() >= until_ms:
                    return
                if row["shard"] in silent:
                    continue
                told[at] = answer = await self._give(row, order)
                if answer["silent"]:
                    silent.add(row["shard"])

        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(rows))):
                group.create_task(work())
        return told

    async def _give(self, row: Mapping[str, Any], order: BulkOrder) -> dict[str, Any]:
        verdict, detail = _would(row, order, self._wall_ms() - PAST_MS)
        if verdict != "done":
            return _told(row, verdict, detail)
        try:
            result = await self._desk.give(_command(row, order), within_s=VERDICT_S, counted=False)
        except NoVerdictError:
            return {**_told(row, UNDECIDED, f"no verdict within {VERDICT_S:g} s: {_STANDS}"), "silent": True}
        except UnreachableError as error:
            return {**_told(row, "refused", f"{error}; it is due as before"), "silent": True}
        return {**_told(row, result.verdict, result.detail), "due_ms": result.due_ms or row["due_ms"]}


def _command(row: Mapping[str, Any], order: BulkOrder) -> Callable[[Orders], Awaitable[ChangeResult]]:
    name = str(row["id"])
    if order.verb == "cancel":
        return lambda orders: orders.cancel(name)
    if order.verb == "now":
        return lambda orders: orders.now(name)
    due_ms = _wanted_ms(row, order)
    return lambda orders: orders.move(name, due_ms=due_ms)


def _wanted_ms(row: Mapping[str, Any], order: BulkOrder) -> int:
    return order.due_ms if order.due_ms is not None else int(row["due_ms"]) + (order.by_ms or 0)


def _would(row: Mapping[str, Any], order: BulkOrder, past_ms: int) -> tuple[str, str]:
    """Verdict and text that the answer has for a row before a command is sent."""
    if order.by_ms is not None and _wanted_ms(row, order) < past_ms:
        return "refused", "it would be in the past: the verb for that is now"
    return "done", "would be changed"


def _told(row: Mapping[str, Any], verdict: str, detail: str) -> dict[str, Any]:
    named = {name: row[name] for name in ("id", "due_ms", "shard")}
    return {"verdict": verdict, "detail": detail, **named, "silent": False}


def _document(
    found: Gathered, order: BulkOrder, answers: Sequence[Mapping[str, Any]], asked: Sequence[bool]
) -> dict[str, Any]:
    verdicts = Counter(answer["verdict"] for answer in answers)
    return {
        "dry_run": order.dry_run,
        "verdicts": dict(verdicts),
        "undecided": verdicts[UNDECIDED],
        "answers": [{name: answer[name] for name in answer if name != "silent"} for answer in answers],
        "next": found.next(asked),
        **found.coverage,
    }
