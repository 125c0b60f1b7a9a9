"""The API under ``/api/v1`` for pending messages. ``openapi.json`` beside this file describes it.

An id in a path is any name that `broker.pending.names` reads: the message id from the answer to the send, a virtual
offset, a recall handle, or ``key:KEY`` with ``?topic=``. Offsets in answers are texts, because they are too large for
JavaScript's numbers.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from aiohttp import web

from broker.door.access import Caller
from broker.door.ids import orders_of
from broker.door.overview import overview
from broker.door.state import DoorState
from broker.pending.names import name_text, read_name
from http_door.files import add_file, text_of
from http_door.guard import json_answer
from http_door.queries import FILTERS, known_only, limit_of, order_of, query_of, read_document, time_of, whole
from http_door.shapes import (
    BODY_SHOWN_BYTES,
    BODY_SHOWN_MAX,
    STATUS,
    USUAL_BARS,
    USUAL_ROWS,
    content_document,
    count_document,
    forecast_document,
    row_document,
)
from store.put.pending_api import (
    BULK_MAX,
    FORECAST_BARS_MAX,
    PAGE_MAX,
    PendingAnswer,
    PendingError,
    PendingName,
    PendingQuery,
    PendingRow,
    PendingVerb,
    PendingVerdict,
)

__all__ = ["CALLER", "add_api"]

CALLER = web.RequestKey("caller", Caller)
"""The caller; the application sets it before a handler runs."""


def add_api(app: web.Application, state: DoorState) -> None:
    """Add the routes."""
    api = Api(state)
    router = app.router
    router.add_get("/api/v1/pending/count", api.count)
    router.add_get("/api/v1/pending/forecast", api.forecast)
    router.add_get("/api/v1/pending", api.page)
    # A key may have braces, which aiohttp's own pattern leaves out.
    router.add_get("/api/v1/pending/{id:[^/]+}", api.get)
    router.add_post("/api/v1/pending/{id:[^/]+}/{verb:cancel|move|now|restart}", api.change)
    router.add_post("/api/v1/bulk/{verb:cancel|move|now|restart}", api.change_matching)
    router.add_get("/api/v1/topics", api.topics)
    router.add_get("/api/v1/overview", api.overview)
    add_file(app, "/api/v1/openapi.json", "application/json", [text_of("broker.door", "openapi.json")])


class Api:
    """The handlers."""

    def __init__(self, state: DoorState) -> None:
        self._state = state

    # ------------------------------------------------------------------------------------------------ looking

    async def count(self, request: web.Request) -> web.Response:
        """``GET pending/count``: the number of all matching messages."""
        query = self._query(request, frozenset(("after",)))
        found = await self._state.work(self._state.control.count, query, request.query.get("after", ""))
        return json_answer(count_document(found))

    async def page(self, request: web.Request) -> web.Response:
        """``GET pending``: the matching messages, in due order."""
        query = self._query(request, frozenset(("limit", "after")))
        limit = limit_of(request.query, USUAL_ROWS, PAGE_MAX)
        found = await self._state.work(self._state.control.page, query, limit, request.query.get("after", ""))
        return json_answer({"messages": [self._row(row) for row in found.rows], "next": found.next or None})

    async def forecast(self, request: web.Request) -> web.Response:
        """``GET pending/forecast``: how many messages come due in each part of a range."""
        given = request.query
        known_only(given, frozenset(("from", "to", "bars", "topic")))
        topic = given.get("topic", "")
        _demand(request, topic)
        now_ms = self._state.core.now_ms()
        from_ms = time_of("from", given["from"]) if "from" in given else now_ms
        to_ms = time_of("to", given["to"]) if "to" in given else from_ms + 3_600_000
        bars = whole("bars", given.get("bars", USUAL_BARS), 1, FORECAST_BARS_MAX)
        found = await self._state.work(self._state.control.forecast, from_ms, to_ms, bars, topic)
        return json_answer(forecast_document(found))

    async def get(self, request: web.Request) -> web.Response:
        """``GET pending/{id}``: one message with properties and body."""
        given = request.query
        known_only(given, frozenset(("topic", "body_max")))
        shown = whole("body_max", given.get("body_max", BODY_SHOWN_BYTES), 0, BODY_SHOWN_MAX)
        name = self._named(request)
        _demand(request, name.topic)
        answer = await self._state.work(self._state.control.get, name)
        document = self._answer(answer)
        if answer.row is not None:
            document |= self._row(answer.row)
            document |= content_document(answer, shown)
        gone = 404 if answer.verdict is PendingVerdict.UNKNOWN else 409
        return json_answer(document, gone if answer.row is None else 200)

    async def topics(self, request: web.Request) -> web.Response:
        """``GET topics``: pending messages by topic, largest first."""
        known_only(request.query, frozenset(("limit",)))
        limit = limit_of(request.query, USUAL_ROWS, PAGE_MAX)
        rows = [row for row in self._state.control.topics() if not _caller(request).refusal(row.topic)]
        shown = [
            {
                "topic": row.topic,
                "count": row.count,
                "bytes": row.bytes,
                "bytes_exact": row.bytes_exact,
                "known": row.known,
            }
            for row in rows[:limit]
        ]
        known = self._state.control.figures().topics_known
        return json_answer({"topics": shown, "more": max(0, len(rows) - limit), "known": known})

    async def overview(self, request: web.Request) -> web.Response:
        """``GET overview``: the figures at the top of the page."""
        known_only(request.query, frozenset())
        _demand(request, "")
        return json_answer(await self._state.work(overview, self._state))

    def _named(self, request: web.Request) -> PendingName:
        host = self._state.core.store.store_host
        return read_name(request.match_info["id"], request.query.get("topic", ""), host)

    # ------------------------------------------------------------------------------------------------ changing

    async def change(self, request: web.Request) -> web.Response:
        """``POST pending/{id}/{verb}``: change one message. The verdict is durable before the answer."""
        known_only(request.query, frozenset(("topic",)))
        name = self._named(request)
        _demand(request, name.topic)
        now_ms = self._state.core.now_ms()
        order = order_of(PendingVerb(request.match_info["verb"]), name, read_document(await request.read()))
        answer = await self._state.work(self._state.control.change, order, now_ms)
        return json_answer(self._answer(answer), STATUS[answer.verdict])

    async def change_matching(self, request: web.Request) -> web.Response:
        """``POST bulk/{verb}``: change all that match; a dry run unless ``dry_run`` is false. Raises PendingError."""
        known_only(request.query, frozenset())
        given = read_document(await request.read())
        verb = PendingVerb(request.match_info["verb"])
        if "ids" in given:
            return await self._change_named(request, given, verb)
        moves = frozenset(("due_ms", "by_ms")) if verb is PendingVerb.MOVE else frozenset[str]()
        known_only(given, frozenset(("query", "dry_run", "limit", "after")) | moves)
        filters, dry_run = given.get("query", {}), given.get("dry_run", True)
        if not isinstance(filters, dict) or not isinstance(dry_run, bool):
            raise PendingError("query must be an object of filters, and dry_run true or false")
        known_only(filters, FILTERS)
        listed = filters.get("property", [])
        query = query_of(filters, listed if isinstance(listed, list) else [listed])
        _demand(request, query.topic)
        now_ms, after = self._state.core.now_ms(), given.get("after") or ""
        due_ms = None if given.get("due_ms") is None else time_of("due_ms", given["due_ms"])
        by_ms = None if given.get("by_ms") is None else whole("by_ms", given["by_ms"], -(10**14), 10**14)
        if not isinstance(after, str):
            raise PendingError("after is the next of an earlier answer")
        if verb is PendingVerb.MOVE and (due_ms is None) == (by_ms is None):
            raise PendingError("a move needs either due_ms or by_ms")
        found = await self._state.work(
            self._state.control.change_matching,
            query,
            verb,
            now_ms,
            limit=limit_of(given, 1000, BULK_MAX),
            dry_run=dry_run,
            after=after,
            due_ms=due_ms,
            by_ms=by_ms,
        )
        return json_answer(
            {
                "dry_run": found.dry_run,
                "verdicts": {verdict.value: count for verdict, count in found.verdicts.items()},
                "looked_at": found.looked_at,
                "answers": [self._answer(answer) for answer in found.answers],
                "next": found.next or None,
                "unread": found.unread,
                "remark": found.remark or None,
            }
        )

    async def _change_named(self, request: web.Request, given: dict[str, Any], verb: PendingVerb) -> web.Response:
        """Change messages that are named by ``ids``. Each has its own answer, in the order of the names."""
        orders = orders_of(given, verb, self._state.core.store.store_host)
        _demand(request, given.get("topic", ""))
        dry_run = given.get("dry_run", True)
        control, now_ms = self._state.control, self._state.core.now_ms()
        answers = await self._state.work(control.change_many, orders, now_ms, dry_run=dry_run)
        named = zip(given["ids"], answers, strict=True)
        return json_answer(
            {
                "dry_run": dry_run,
                "verdicts": Counter(answer.verdict.value for answer in answers),
                "looked_at": len(answers),
                "answers": [{"name": name, **self._answer(answer)} for name, answer in named],
                "next": None,
                "unread": 0,
                "remark": None,
            }
        )

    # ------------------------------------------------------------------------------------------------ parts of it

    def _query(self, request: web.Request, more: frozenset[str]) -> PendingQuery:
        given = request.query
        known_only(given, FILTERS | more)
        query = query_of(given, given.getall("property", []))
        _demand(request, query.topic)
        return query

    def _id(self, offset: int) -> str:
        return name_text(offset, self._state.core.store.store_host)

    def _row(self, row: PendingRow) -> dict[str, Any]:
        return row_document(row, self._id(row.offset))

    def _answer(self, answer: PendingAnswer) -> dict[str, Any]:
        return {
            "verdict": answer.verdict.value,
            "detail": answer.detail,
            "id": self._id(answer.offset) if answer.offset else None,
            "version": answer.version,
            "due_ms": answer.due_ms or None,
            "when_ms": answer.when_ms or None,
            "where": answer.where or None,
        }


def _caller(request: web.Request) -> Caller:
    return request[CALLER]


def _demand(request: web.Request, topic: str) -> None:
    """Raise HTTPForbidden unless the caller may see (or change) pending messages of a topic."""
    refusal = _caller(request).refusal(topic)
    if refusal:
        raise web.HTTPForbidden(text=refusal)
