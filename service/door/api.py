"""The API under ``/api/v1`` for pending entries. ``openapi.json`` beside this file describes it.

Fields, verdicts and errors are those of the broker's API. An id is ``BROKER/QUEUE/OFFSET``; its slashes may be written
as ``%2F``. Answers about many entries cover the shards that this instance owns or follows, and say which
(`service.door.coverage`). Queries and changes of one entry work for every shard (`service.door.orders`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from aiohttp import web

from http_door.files import add_file, text_of
from http_door.guard import check_site, json_answer
from http_door.queries import FILTERS, known_only, limit_of, moment_of, query_of, read_document, time_of, whole
from http_door.shapes import BODY_SHOWN_BYTES, BODY_SHOWN_MAX, STATUS, USUAL_BARS, USUAL_ROWS, content_document
from http_door.work import Workroom
from remoting.pending_rules import past_fault
from service.door.bulk import BulkDesk, gathered, read_bulk
from service.door.coverage import ShardSight, known_shard, seen_again
from service.door.orders import OrderDesk, Orders, read_entry_name
from service.door.overview import overview
from service.door.reading import by_topic, counted, forecast, listed, looked_up, row_of
from service.door.view import InstanceView
from store.put.pending_api import (
    FORECAST_BARS_MAX,
    PAGE_MAX,
    PendingAnswer,
    PendingError,
    PendingQuery,
    PendingVerdict,
)
from timewheel_client import ChangeResult

__all__ = ["OVERVIEW_MS", "WAITING_MAX", "WORK_S", "ServiceApi", "add_api"]

WAITING_MAX = 32
"""Most requests that wait for a thread of the door or run in one."""
WORK_S = 20.0
"""Longest time that a request may take."""
OVERVIEW_MS = 900
"""An overview is reused for this long, because making one asks every shard."""
VERBS = ("cancel", "move", "now")
_FILTERS = FILTERS - {"key_prefix"}
_SHOWN_SHARDS = 10
_P = ParamSpec("_P")
_T = TypeVar("_T")


def add_api(app: web.Application, api: ServiceApi) -> None:
    """Add the routes."""
    router = app.router
    router.add_get("/api/v1/pending/count", api.count)
    router.add_get("/api/v1/pending/forecast", api.forecast)
    router.add_get("/api/v1/pending", api.page)
    router.add_get("/api/v1/topics", api.topics)
    router.add_get("/api/v1/overview", api.overview)
    add_file(app, "/api/v1/openapi.json", "application/json", [text_of("service.door", "openapi.json")])
    router.add_post("/api/v1/bulk/{verb:[^/]+}", api.change_matching)
    # An id has two slashes, as they are or as %2F; a broker's name may have braces, which aiohttp's pattern leaves out.
    for name in ("{id:[^/]+/[^/]+/[^/]+}", "{id:[^/]+}"):
        router.add_get(f"/api/v1/pending/{name}", api.get)
        router.add_post(f"/api/v1/pending/{name}/{{verb:[^/]+}}", api.change)


class ServiceApi:
    """The handlers.

    Args:
        view: The instance.
        desk: Sends the commands.
        wall_ms, mono_ms: Read the clocks.
    """

    def __init__(
        self, view: InstanceView, desk: OrderDesk, wall_ms: Callable[[], int], mono_ms: Callable[[], int]
    ) -> None:
        self._view = view
        self._desk = desk
        self._wall_ms, self._mono_ms = wall_ms, mono_ms
        self._bulk = BulkDesk(desk, wall_ms, mono_ms)
        self._workroom = Workroom()
        self._overview: tuple[int, dict[str, Any]] | None = None
        self._gathering = asyncio.Lock()

    async def work(self, work: Callable[_P, _T], *args: _P.args, **more: _P.kwargs) -> _T:
        """Run a function in a thread of the door. Raises BusyError, and what the function raises."""
        return await self._workroom.run(WAITING_MAX, WORK_S, work, *args, **more)

    # ------------------------------------------------------------------------------------------------ many entries

    async def _of_all(self, ask: Callable[[Sequence[ShardSight]], dict[str, Any]]) -> dict[str, Any]:
        """Ask the shards that are covered now, and correct the coverage afterwards."""
        return await self.work(lambda: seen_again(ask(self._view.sights()), self._view.sights()))

    async def count(self, request: web.Request) -> web.Response:
        """``GET pending/count``: the number of matching entries, in the shards that the answer names."""
        query, after = _query(request, frozenset(("after",))), request.query.get("after", "")
        return json_answer(await self._of_all(lambda sights: counted(sights, query, after, self._mono_ms)))

    async def topics(self, request: web.Request) -> web.Response:
        """``GET topics``: the matching entries by topic, largest first."""
        query, after = _query(request, frozenset(("after",))), request.query.get("after", "")
        return json_answer(await self._of_all(lambda sights: by_topic(sights, query, after, self._mono_ms)))

    async def page(self, request: web.Request) -> web.Response:
        """``GET pending``: the matching entries, in due order."""
        query, after = _query(request, frozenset(("limit", "after"))), request.query.get("after", "")
        limit = limit_of(request.query, USUAL_ROWS, PAGE_MAX)
        return json_answer(await self._of_all(lambda sights: listed(sights, query, limit, after, self._mono_ms)))

    async def forecast(self, request: web.Request) -> web.Response:
        """``GET pending/forecast``: how many entries come due in each part of a range."""
        given = request.query
        known_only(given, frozenset(("from", "to", "bars", "topic")))
        from_ms = time_of("from", given["from"]) if "from" in given else self._wall_ms()
        to_ms = time_of("to", given["to"]) if "to" in given else from_ms + 3_600_000
        bars = whole("bars", given.get("bars", USUAL_BARS), 1, FORECAST_BARS_MAX)
        topic = query_of({"topic": given.get("topic", "")}, []).topic
        return json_answer(
            await self._of_all(lambda sights: forecast(sights, from_ms, to_ms, bars, topic, self._mono_ms))
        )

    async def overview(self, request: web.Request) -> web.Response:
        """``GET overview``: the figures at the top of the page."""
        known_only(request.query, frozenset())
        async with self._gathering:
            last, now_ms = self._overview, self._mono_ms()
            if last is None or now_ms - last[0] >= OVERVIEW_MS:
                found = await self._of_all(lambda _: overview(self._view, self._wall_ms()))
                last = self._overview = now_ms, found
        return json_answer(last[1])

    # ------------------------------------------------------------------------------------------------ one entry

    async def get(self, request: web.Request) -> web.Response:
        """``GET pending/{id}``: the state of one entry; if it waits and is known here, with properties and body.

        The verdict always comes from the shard's owner, as a record, even if this instance is the owner: an entry that
        is still in its cache may be delivered.
        """
        given = request.query
        known_only(given, frozenset(("body_max",)))
        shown = whole("body_max", given.get("body_max", BODY_SHOWN_BYTES), 0, BODY_SHOWN_MAX)
        name, shard, sights = self._named(request)
        check_site(request)  # this query writes: two records
        result = await self._desk.give(lambda orders: orders.get(name))
        document = _answer(result, shard)
        if result.verdict != PendingVerdict.DONE.value:
            return json_answer(document, _status(result.verdict, gone=True))
        here = await self.work(self._found_here, sights, result)
        if here is None:
            document |= {"properties": None, "body_bytes": None, "body_base64": None}
        else:
            assert here.row is not None
            row = {**row_of(here.row, shard), "id": name, "due_ms": result.due_ms or here.row.due_ms}
            document |= {**row, **content_document(here, shown)}
        return json_answer(document)

    @staticmethod
    def _found_here(sights: Sequence[ShardSight], result: ChangeResult) -> PendingAnswer | None:
        """The content of an entry that waits, if this instance knows it; of its last roll, if it was rolled."""
        shard, entry = read_entry_name(result.where or result.id)
        return looked_up(sights, shard, entry)

    async def change(self, request: web.Request) -> web.Response:
        """``POST pending/{id}/{verb}``: change one entry. The verdict is stored in its queue. Raises PendingError."""
        verb = _verb(request)
        known_only(request.query, frozenset())
        name, shard, _ = self._named(request)
        order = self._order(verb, name, read_document(await request.read()))
        result = await self._desk.give(order)
        return json_answer(_answer(result, shard), _status(result.verdict))

    async def change_matching(self, request: web.Request) -> web.Response:
        """``POST bulk/{verb}``: change matching entries; a dry run unless ``dry_run`` is false. Raises PendingError."""
        verb = _verb(request)
        known_only(request.query, frozenset())
        order = read_bulk(verb, read_document(await request.read()), self._wall_ms())
        found = await self.work(lambda: gathered(self._view.sights(), order, self._mono_ms))
        return json_answer(await self._bulk.change(found, order))

    def _order(self, verb: str, name: str, given: dict[str, Any]) -> Callable[[Orders], Awaitable[ChangeResult]]:
        """Read an order. Raises PendingError."""
        known_only(given, frozenset(("due_ms", "by_ms")) if verb == "move" else frozenset())
        if verb != "move":
            return lambda orders: orders.cancel(name) if verb == "cancel" else orders.now(name)
        due_ms, by_ms = moment_of(given)
        fault = "" if due_ms is None else past_fault("due_ms", due_ms, self._wall_ms())
        if by_ms == 0:
            fault = "by_ms=0 moves nothing"
        if fault:
            raise PendingError(fault)
        return lambda orders: orders.move(name, due_ms=due_ms, by_ms=by_ms)

    def _named(self, request: web.Request) -> tuple[str, str, list[ShardSight]]:
        """Read the id of an entry; returns id, its shard, and all shards. Raises PendingError."""
        shard, entry = read_entry_name(request.match_info["id"])
        sights = self._view.sights()
        if known_shard(sights, shard) is None:
            names = ", ".join(sight.name for sight in sights[:_SHOWN_SHARDS])
            more = " …" if len(sights) > _SHOWN_SHARDS else ""
            raise PendingError(f"{shard!r:.80} is no shard of {self._view.topic}; there are {names}{more}")
        return f"{shard}/{entry}", shard, sights


def _verb(request: web.Request) -> str:
    verb = request.match_info["verb"]
    if verb not in VERBS:
        raise web.HTTPNotFound(text=f"a service has {', '.join(VERBS)}; {verb!r:.40} is none of them")
    return verb


def _query(request: web.Request, more: frozenset[str]) -> PendingQuery:
    given = request.query
    known_only(given, _FILTERS | more)
    return query_of(given, given.getall("property", []))


def _status(verdict: str, *, gone: bool = False) -> int:
    """The HTTP status of a verdict. For a query it is 200 only if the entry waits."""
    try:
        status = STATUS[PendingVerdict(verdict)]
    except ValueError:
        return 502  # of a later version
    return 409 if gone and status == 200 else status


def _answer(result: ChangeResult, shard: str) -> dict[str, Any]:
    return {
        "verdict": result.verdict,
        "detail": result.detail,
        "id": result.id,
        "version": result.version,
        "due_ms": result.due_ms or None,
        "when_ms": result.when_ms or None,
        "where": result.where or None,
        "shard": shard,
    }
