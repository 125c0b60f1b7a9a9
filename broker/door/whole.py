"""The API over all shards: every shard's door answers for all, unless a request has ``Timewheel-Shard: own``.

==================================  =======================================================================
count, forecast, topics, overview   all shards are asked at once, and the answers added up (`broker.door.merging`)
a list                              all are asked at once; the rows come in one order, each with its ``broker``
one message                         a message id has its shard's address, a recall handle its name. A delay key is asked
                                    of all shards, and each pending match is changed (`timewheel_client.pending.named`)
a bulk change                       one shard after the other; the cursor says where each continues
==================================  =======================================================================

If a shard does not answer, the answer is 503 with its name: a part is never shown as if it were everything. Only the
overview continues without the shard, and says so. Each shard applies its own access rules: it gets the caller's
``Authorization``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from broker.door.ids import ids_of, is_dry
from broker.door.merging import (
    cursor_of_all,
    cursors_of_each,
    merged_counts,
    merged_forecasts,
    merged_overviews,
    merged_pages,
    merged_topics,
)
from broker.door.peers import OWN, OWN_VALUE, Peer, PeerAnswer, Peers
from http_door.merging import joined_remarks, named_remark
from http_door.queries import known_only, limit_of, read_document
from remoting.json_dialect import dumps
from store.put.pending_api import BULK_MAX, PAGE_MAX, PendingError
from timewheel_client.pending.named import named_brokers, told_first
from timewheel_client.values.errors import NoRouteError

__all__ = ["Whole"]

_API = "/api/v1/"
_USUAL_ROWS, _USUAL_CHANGES = 100, 1000
Pairs = Sequence[tuple[str, str]]


class _ShardError(Exception):
    """A shard refused: its answer becomes the answer for all."""

    def __init__(self, answer: PeerAnswer) -> None:
        super().__init__(answer.peer.name)
        self.answer = answer


def _json(document: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=dumps(dict(document)), status=status, content_type="application/json")


def _with(pairs: Pairs, **values: object) -> list[tuple[str, str]]:
    """A query with some values replaced; empty values are left out."""
    kept = [(name, value) for name, value in pairs if name not in values]
    return kept + [(name, str(value)) for name, value in values.items() if value != ""]


def _told_of(name: str, found: Sequence[dict[str, Any]], verb: str, error: str) -> dict[str, Any]:
    """The answer for one of several names, from the answers of its shards and the failure of one of them."""
    why = {"error": error} if error else {}
    if not found:
        return {"name": name, **why}
    first, *others = (found[place] for place in told_first(found, verb))
    return {**first, **({"others": others} if others else {}), **why}


class Whole:
    """The handlers.

    Args:
        peers: All shards.
        now_ms: Reads the broker's clock, epoch ms.
    """

    def __init__(self, peers: Peers, now_ms: Callable[[], int]) -> None:
        self._peers = peers
        self._now_ms = now_ms
        self._handlers: dict[str, Callable[[web.Request, Pairs], Awaitable[web.Response]]] = {
            "pending/count": self._count,
            "pending/forecast": self._forecast,
            "pending": self._page,
            "topics": self._topics,
            "overview": self._overview,
            "pending/{id}": self._one,
            "pending/{id}/{verb}": self._one,
            "bulk/{verb}": self._bulk,
        }

    async def answer(self, request: web.Request) -> web.Response | None:
        """Answer for all shards; None if the request is for this one only. Raises PendingError, NotReadyError."""
        resource = request.match_info.route.resource
        if request.headers.get(OWN) == OWN_VALUE or resource is None or not resource.canonical.startswith(_API):
            return None
        handler = self._handlers.get(resource.canonical.removeprefix(_API))
        if handler is None:
            return None
        try:
            return await handler(request, list(request.query.items()))
        except _ShardError as error:
            answer = error.answer
            return _json(answer.document, answer.status)
        except NoRouteError as error:
            raise PendingError(f"{error}: take its message id, which has the address in it") from None

    async def _all(self, request: web.Request, queries: Mapping[int, Pairs]) -> dict[int, dict[str, Any]]:
        """Ask some shards at the same time. Raises _ShardError for the first that refuses."""
        peers = [peer for peer in await self._peers.all() if peer.index in queries]
        answers = await asyncio.gather(*(self._peers.ask(peer, request, queries[peer.index]) for peer in peers))
        for answer in answers:
            if answer.status >= 400:
                raise _ShardError(answer)
        return {answer.peer.index: answer.document for answer in answers}

    async def _begun(self, after: str) -> dict[int, str]:
        return cursors_of_each(after, [peer.index for peer in await self._peers.all()])

    # ------------------------------------------------------------------------------------------------ looking

    async def _count(self, request: web.Request, given: Pairs) -> web.Response:
        begun = await self._begun(request.query.get("after", ""))
        names = {peer.index: peer.name for peer in await self._peers.all()}
        found = await self._all(request, {index: _with(given, after=after) for index, after in begun.items()})
        return _json(
            merged_counts({index: {**one, "remark": named_remark(names[index], one)} for index, one in found.items()})
        )

    async def _page(self, request: web.Request, given: Pairs) -> web.Response:
        limit = limit_of(request.query, _USUAL_ROWS, PAGE_MAX)
        begun = await self._begun(request.query.get("after", ""))
        names = {peer.index: peer.name for peer in await self._peers.all()}
        asked = {index: _with(given, after=after, limit=limit) for index, after in begun.items()}
        rows, cursors = merged_pages(await self._all(request, asked), begun, limit)
        messages = [{**row, "broker": names[index]} for index, row in rows]
        return _json({"messages": messages, "next": cursor_of_all(cursors)})

    async def _forecast(self, request: web.Request, given: Pairs) -> web.Response:
        if "from" not in request.query:
            given = _with(given, **{"from": self._now_ms()})
        peers = await self._peers.all()
        found = await self._all(request, {peer.index: given for peer in peers})
        return _json(merged_forecasts(list(found.values())))

    async def _topics(self, request: web.Request, given: Pairs) -> web.Response:
        known_only(request.query, frozenset(("limit",)))
        limit = limit_of(request.query, _USUAL_ROWS, PAGE_MAX)
        asked = {peer.index: _with(given, limit=PAGE_MAX) for peer in await self._peers.all()}
        return _json(merged_topics(list((await self._all(request, asked)).values()), limit))

    async def _overview(self, request: web.Request, given: Pairs) -> web.Response:
        answers = await asyncio.gather(*(self._peers.ask(peer, request, given) for peer in await self._peers.all()))
        found = [answer for answer in answers if answer.status < 400]
        away = [answer for answer in answers if answer.status == 503]
        if not found or len(found) + len(away) < len(answers):
            raise _ShardError(next(answer for answer in answers if answer.status >= 400))
        return _json(
            merged_overviews(
                [answer.document for answer in found],
                [f"{answer.peer.name} is left out: {answer.document['error']}" for answer in away],
            )
        )

    # ------------------------------------------------------------------------------------------------ one message

    async def _one(self, request: web.Request, given: Pairs) -> web.Response:
        peers = {peer.name: peer for peer in await self._peers.all()}
        name = request.match_info["id"]
        named = named_brokers(name, {peer.name: peer.address for peer in peers.values()})
        body = None if request.method == "GET" else read_document(await request.read())
        if not named:
            raise PendingError("no shard is there")
        answers = await asyncio.gather(*(self._peers.ask(peers[broker], request, given, body) for broker in named))
        for answer in answers:
            if "verdict" not in answer.document:
                raise _ShardError(answer)
        verb = request.match_info.get("verb", "")
        first, *others = (answers[place] for place in told_first([answer.document for answer in answers], verb))
        more = {"others": [self._told(other) for other in others]} if others else {}
        return _json({**self._told(first), **more}, first.status)

    @staticmethod
    def _told(answer: PeerAnswer) -> dict[str, Any]:
        return {**answer.document, "broker": answer.peer.name}

    # ------------------------------------------------------------------------------------------------ many messages

    async def _bulk(self, request: web.Request, given: Pairs) -> web.Response:
        """Change one shard after the other. If one refuses, answer with the changes so far, its error and a cursor."""
        order = read_document(await request.read())
        if "ids" in order:
            return await self._bulk_named(request, given, order)
        limit, after = limit_of(order, _USUAL_CHANGES, BULK_MAX), order.get("after") or ""
        if not isinstance(after, str):
            raise PendingError("after is the next of an earlier answer")
        peers = {peer.index: peer for peer in await self._peers.all()}
        begun = await self._begun(after)
        await self._try(request, given, order, [peers[index] for index in begun])
        cursors: dict[int, str | None] = dict(begun)
        verdicts: Counter[str] = Counter()
        told: dict[str, Any] = {"dry_run": True, "looked_at": 0, "answers": [], "unread": 0, "remark": None}
        for index, cursor in begun.items():
            left = limit - sum(verdicts.values())
            if left <= 0:
                break
            answer = await self._peers.ask(peers[index], request, given, {**order, "limit": left, "after": cursor})
            document = answer.document
            if answer.status >= 400:
                if not told["looked_at"]:
                    raise _ShardError(answer)
                told["error"] = f"{answer.peer.name}: {document.get('error', answer.status)}"
                break
            verdicts.update(document["verdicts"])
            told["dry_run"] = document["dry_run"]
            told["looked_at"] += document["looked_at"]
            told["unread"] += document["unread"]
            told["remark"] = joined_remarks((told["remark"], named_remark(answer.peer.name, document)))
            told["answers"] += [{**one, "broker": answer.peer.name} for one in document["answers"]]
            cursors[index] = document["next"]
        return _json({**told, "verdicts": dict(verdicts), "next": cursor_of_all(cursors)})

    async def _bulk_named(self, request: web.Request, given: Pairs, order: dict[str, Any]) -> web.Response:
        """Change named messages. Each shard gets the names that it may have; all check the order before one changes."""
        ids, dry, verb = ids_of(order), is_dry(order), request.match_info["verb"]
        peers = {peer.name: peer for peer in await self._peers.all()}
        if not peers:
            raise PendingError("no shard is there")
        addresses = {peer.name: peer.address for peer in peers.values()}
        places: dict[str, list[int]] = {}
        for place, name in enumerate(ids):
            for broker in named_brokers(name, addresses):
                places.setdefault(broker, []).append(place)
        orders = {broker: {**order, "ids": [ids[place] for place in own]} for broker, own in places.items()}
        answers: list[PeerAnswer] = []
        for dry_run in (True,) if dry else (True, False):
            asked = [
                self._peers.ask(peers[broker], request, given, {**own, "dry_run": dry_run})
                for broker, own in orders.items()
            ]
            answers = await asyncio.gather(*asked)
            refused = [answer for answer in answers if answer.status >= 400]
            if refused and (dry_run or len(refused) == len(answers)):
                raise _ShardError(refused[0])
        told: list[list[dict[str, Any]]] = [[] for _ in ids]
        away: dict[int, str] = {}
        for answer in answers:
            its = places[answer.peer.name]
            if answer.status >= 400:
                away |= dict.fromkeys(its, f"{answer.peer.name}: {answer.document.get('error', answer.status)}")
                continue
            for place, document in zip(its, answer.document["answers"], strict=True):
                told[place].append({**document, "broker": answer.peer.name})
        rows = [_told_of(name, told[place], verb, away.get(place, "")) for place, name in enumerate(ids)]
        verdicts = Counter(row["verdict"] for row in rows if "verdict" in row)
        document = {"verdicts": verdicts, "looked_at": len(ids), "answers": rows, "next": None}
        document |= {"unread": 0, "remark": None}
        error = {"error": next(iter(away.values()))} if away else {}
        return _json({"dry_run": dry, **document, **error})

    async def _try(self, request: web.Request, given: Pairs, order: Mapping[str, Any], peers: Sequence[Peer]) -> None:
        """Let every shard check the order before the first one carries it out. Raises _ShardError."""
        if order.get("dry_run", True) is not False:
            return
        trial = {**order, "dry_run": True, "limit": 1, "after": ""}
        for answer in await asyncio.gather(*(self._peers.ask(peer, request, given, trial) for peer in peers)):
            if answer.status >= 400:
                raise _ShardError(answer)
