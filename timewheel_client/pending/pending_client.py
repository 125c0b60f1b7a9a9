"""`PendingClient`: looks at and changes what is pending, on all brokers of a cluster. See docs/pending.md.

A message id names its broker by its address, a recall handle by its name; only that one is asked. A bare offset means
something on every broker, so it is taken only where there is one broker, or with the broker named. A delay key is asked
for on all brokers: the sender may have reached any of them, and the key may wait on several
(`timewheel_client.pending.named`).
"""

from __future__ import annotations

import asyncio
import builtins
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from remoting.codes import RequestCode, ResponseCode
from remoting.errors import ProtocolError
from remoting.json_dialect import loads
from timewheel_client.net.client_core import ClientCore
from timewheel_client.net.credentials import credentials_of
from timewheel_client.net.tls import Tls
from timewheel_client.pending.cursors import cursor_of, cursors_in
from timewheel_client.pending.named import named_brokers, told_first
from timewheel_client.pending.pending_values import (
    ChangeResult,
    CountResult,
    MatchingResult,
    OutlookResult,
    WaitingMessage,
    WaitingPage,
    Which,
    change_of,
    waiting_of,
)
from timewheel_client.values.arguments import need_text
from timewheel_client.values.errors import BrokerError, ClientError, NoRouteError

__all__ = ["PendingClient"]

TIMEOUT_MS = 30_000
PAGE = 500
CALL_LIMIT = 10_000
ANSWERS_KEPT = 10_000
REMARK_CHARS_ENOUGH = 2_000
"""The remarks of further calls to a broker are left out."""
NOT_KNOWN = "whether this call changed something is not known"


class _PassedOver:
    """What brokers say that they have passed over; those of older versions say nothing."""

    def __init__(self) -> None:
        self.count = 0
        self.remarks: dict[str, str] = {}

    def add(self, broker: str, document: Mapping[str, Any]) -> None:
        """Add the answer to one call."""
        self.count += int(document.get("unread", 0))
        remark, before = document.get("remark"), self.remarks.get(broker, "")
        if remark and len(before) < REMARK_CHARS_ENOUGH:
            self.remarks[broker] = f"{before}; {remark}" if before else str(remark)


class PendingClient:
    """Sees and changes pending messages.

    Args:
        namesrv: Name servers, ``HOST:PORT;HOST:PORT``.
        broker: The name of the only broker to ask; empty for all of the cluster.
        timeout_ms: For one answer of one broker.
        tls, access_key, secret_key: As for `Producer`.

    >>> async def stop(order: str) -> bool:
    ...     async with PendingClient("127.0.0.1:9876") as pending:
    ...         return bool(await pending.cancel(f"key:{order}", topic="OrderTimeout"))
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        broker: str = "",
        timeout_ms: int = TIMEOUT_MS,
        tls: Tls = False,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        self._broker = broker
        self._timeout_ms = timeout_ms
        self._core = ClientCore(namesrv, dict, credentials=credentials_of(access_key, secret_key), tls=tls)

    async def __aenter__(self) -> Self:
        await self._core.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._core.close()

    # ------------------------------------------------------------------------------------------------ one message

    async def get(self, name: str, *, topic: str = "") -> ChangeResult:
        """Look at one message; its ``message`` is there if it is pending. Raises BrokerError for a bad name.

        A delay key may name one on each broker: ``others`` has what the rest of them say. So it is with the changes:
        all that wait are changed.
        """
        return await self._of_one(RequestCode.PENDING_GET, name, {"name": name, "topic": topic})

    async def cancel(self, name: str, *, topic: str = "", version: int | None = None) -> ChangeResult:
        """Take a message out."""
        return await self._change("cancel", name, topic, version)

    async def move(
        self,
        name: str,
        *,
        topic: str = "",
        due_ms: int | None = None,
        by_ms: int | None = None,
        version: int | None = None,
    ) -> ChangeResult:
        """Give a message another due time (epoch ms), or one so many ms later."""
        return await self._change("move", name, topic, version, dueMs=due_ms, byMs=by_ms)

    async def now(self, name: str, *, topic: str = "", version: int | None = None) -> ChangeResult:
        """Have a message delivered now."""
        return await self._change("now", name, topic, version)

    async def restart(self, name: str, *, topic: str = "", version: int | None = None) -> ChangeResult:
        """Make a message due now plus the delay that it was sent with."""
        return await self._change("restart", name, topic, version)

    async def _change(self, verb: str, name: str, topic: str, version: int | None, **times: int | None) -> ChangeResult:
        fields: dict[str, object] = {"verb": verb, "name": name, "topic": topic, "version": version, **times}
        return await self._of_one(RequestCode.PENDING_CHANGE, name, fields)

    async def _of_one(self, code: RequestCode, name: str, fields: dict[str, object]) -> ChangeResult:
        brokers = named_brokers(need_text("name", name), await self.brokers())
        if not brokers:
            raise NoRouteError("no broker is registered")
        found = await asyncio.gather(
            *(self._ask(address, code, fields) for address in brokers.values()), return_exceptions=True
        )
        # Every broker has answered or failed by now, so no request is still under way. Repeating the call is harmless.
        documents = [document for document in found if not isinstance(document, BaseException)]
        for error in found:
            if isinstance(error, BaseException):
                raise error
        names = list(brokers)
        first, *others = (
            change_of(documents[place], names[place]) for place in told_first(documents, str(fields.get("verb", "")))
        )
        return replace(first, others=tuple(others))

    # ------------------------------------------------------------------------------------------------ many messages

    async def list(self, which: Which | None = None, *, limit: int | None = None) -> AsyncIterator[WaitingMessage]:
        """Yield what is pending in due order, over all brokers."""
        async for message, _ in self._list(which or Which(), limit, {}):
            yield message

    async def page(self, which: Which | None = None, *, limit: int = 100, after: str = "") -> WaitingPage:
        """List some, in due order over all brokers, behind the cursor ``after``; with the cursor of the rest.

        Raises ClientError for a text that is no cursor, or one of brokers that are not there.
        """
        cursors = cursors_in(after, await self.brokers())
        messages: builtins.list[WaitingMessage] = []
        async for message, cursor in self._list(which or Which(), limit + 1, cursors):
            if len(messages) < limit:
                messages.append(message)
                cursors[message.broker] = cursor
            elif not all(cursors[shown.broker] for shown in messages):
                raise ClientError("a broker of an older version has more and gives no cursor: take a larger limit")
            else:
                return WaitingPage(messages=messages, next=cursor_of(cursors))
        return WaitingPage(messages=messages, next="")

    async def _list(
        self, which: Which, limit: int | None, cursors: Mapping[str, str]
    ) -> AsyncIterator[tuple[WaitingMessage, str]]:
        """Yield messages, each with the cursor behind it on its broker; of the brokers in a cursor, if there is one."""
        fields = which.fields()
        brokers = await self.brokers()
        streams = [self._pages(name, brokers[name], fields, cursors.get(name, "")) for name in cursors or brokers]
        heads: builtins.list[tuple[int, int, WaitingMessage, str]] = []
        for number, stream in enumerate(streams):
            async for message, cursor in stream:
                heads.append((message.due_ms, number, message, cursor))
                break
        heapq.heapify(heads)
        count = 0
        while heads and (limit is None or count < limit):
            _, number, message, cursor = heads[0]
            yield message, cursor
            count += 1
            try:
                following, cursor = await anext(streams[number])
                heapq.heapreplace(heads, (following.due_ms, number, following, cursor))
            except StopAsyncIteration:
                heapq.heappop(heads)

    async def _pages(
        self, broker: str, address: str, fields: dict[str, str], after: str
    ) -> AsyncIterator[tuple[WaitingMessage, str]]:
        while True:
            more = {**fields, "limit": PAGE, "after": after}
            document = await self._ask(address, RequestCode.PENDING_LIST, more)
            for message in document["messages"]:
                yield waiting_of(message, broker), str(message.get("after", ""))
            after = document["next"]
            if not after:
                return

    async def count(self, which: Which | None = None) -> dict[str, int]:
        """Count what is pending: brokers with their numbers. Raises what `counted` raises."""
        return (await self.counted(which)).counts

    async def counted(self, which: Which | None = None) -> CountResult:
        """`count`, also with the number of messages that may match and could not be read.

        Raises the first error of a broker once all have ended. If some were counted, its text says how many, and behind
        which cursors the rest is.
        """
        fields = (which or Which()).fields()
        brokers = await self.brokers()
        counts: dict[str, int] = {}
        rest: dict[str, str] = {}
        unread = _PassedOver()

        async def of(broker: str) -> None:
            rest[broker] = ""
            while True:
                more = {**fields, "after": rest[broker]}
                document = await self._ask(brokers[broker], RequestCode.PENDING_COUNT, more)
                counts[broker] = counts.get(broker, 0) + int(document["count"])
                unread.add(broker, document)
                rest[broker] = document["next"]
                if not rest[broker]:
                    del rest[broker]
                    return

        for error in await asyncio.gather(*map(of, brokers), return_exceptions=True):
            if isinstance(error, BaseException):
                if counts and isinstance(error, (ClientError, ProtocolError)):
                    counted = ", ".join(f"{count} on {broker}" for broker, count in counts.items())
                    error.args = (f"{error}; counted before: {counted}; the rest is behind {cursor_of(rest)!r}",)
                raise error
        return CountResult(
            counts={broker: counts[broker] for broker in brokers}, unread=unread.count, remarks=unread.remarks
        )

    async def change_matching(
        self,
        which: Which,
        verb: str,
        *,
        limit: int | None = None,
        dry_run: bool = True,
        purge: bool = False,
        due_ms: int | None = None,
        by_ms: int | None = None,
        after: str = "",
    ) -> MatchingResult:
        """Change all that match, on one broker after the other, behind the cursor ``after`` (`MatchingResult.next`).

        Raises BrokerError for a query that is too wide, ClientError for a text that is no cursor, and the error of the
        first call. An error of a later call ends it, and stands in the result, as does what was passed over because a
        broker can neither read nor compare it (`MatchingResult.errors`, `MatchingResult.unread`).
        """
        verdicts: Counter[str] = Counter()
        answers: builtins.list[ChangeResult] = []
        unfinished: dict[str, str] = {}
        errors: dict[str, str] = {}
        unread = _PassedOver()
        answered = False
        fields = {**which.fields(), "verb": verb, "dryRun": str(dry_run).lower(), "purge": str(purge).lower()}
        brokers = await self.brokers()
        if purge and not dry_run:
            await self._try_purge(brokers, fields)
        for broker, cursor in cursors_in(after, brokers).items():
            while True:
                left = CALL_LIMIT if limit is None else min(CALL_LIMIT, limit - sum(verdicts.values()))
                if left <= 0 or errors:
                    unfinished[broker] = cursor
                    break
                more = {**fields, "limit": left, "after": cursor, "dueMs": due_ms, "byMs": by_ms}
                try:
                    document = await self._ask(brokers[broker], RequestCode.PENDING_CHANGE_MATCHING, more)
                except (ClientError, ProtocolError) as error:
                    if not answered:
                        raise
                    told = isinstance(error, BrokerError) and error.code != ResponseCode.SUCCESS
                    errors[broker] = str(error) if told or dry_run else f"{error}; {NOT_KNOWN}"
                    unfinished[broker] = cursor
                    break
                answered = True
                verdicts.update(document["verdicts"])
                unread.add(broker, document)
                answers += [change_of(answer, broker) for answer in document["answers"][: ANSWERS_KEPT - len(answers)]]
                cursor = document["next"]
                if not cursor:
                    break
        return MatchingResult(
            verdicts=dict(verdicts),
            answers=answers,
            dry_run=dry_run,
            unfinished=unfinished,
            errors=errors,
            unread=unread.count,
            remarks=unread.remarks,
        )

    async def _try_purge(self, brokers: Mapping[str, str], fields: Mapping[str, str]) -> None:
        """Have a broker that refuses, because it has the topic, do so before any other has changed something."""
        look = {**fields, "dryRun": "true", "limit": 1}
        await asyncio.gather(
            *(self._ask(address, RequestCode.PENDING_CHANGE_MATCHING, look) for address in brokers.values())
        )

    async def forecast(self, from_ms: int, to_ms: int, bars: int = 60, *, topic: str = "") -> OutlookResult:
        """Say how many come due when, at most 2,000 bars of equal length."""
        fields = {"fromMs": from_ms, "toMs": to_ms, "bars": bars, "topic": topic}
        brokers = (await self.brokers()).values()
        documents = await asyncio.gather(
            *(self._ask(address, RequestCode.PENDING_FORECAST, fields) for address in brokers)
        )
        counts: Counter[int] = Counter()
        for document in documents:
            counts.update({int(bar["from_ms"]): int(bar["count"]) for bar in document["bars"]})
        first = documents[0] if documents else {"step_ms": max(1, (to_ms - from_ms) // bars)}
        return OutlookResult(
            from_ms=from_ms,
            to_ms=to_ms,
            step_ms=int(first["step_ms"]),
            bars=sorted(counts.items()),
            total=sum(int(document["total"]) for document in documents),
            overdue=sum(int(document["overdue"]) for document in documents),
            later=sum(int(document["later"]) for document in documents),
            exact=all(document["exact"] for document in documents),
            unread=sum(int(document.get("unread", 0)) for document in documents),
        )

    # ------------------------------------------------------------------------------------------------ brokers

    async def brokers(self) -> dict[str, str]:
        """The brokers that are asked: name and address. Raises NoRouteError if there is none of the name given."""
        found = await self._core.masters()
        if self._broker:
            if self._broker not in found:
                raise NoRouteError(f"no broker {self._broker!r}: there are {', '.join(found) or 'none'}")
            return {self._broker: found[self._broker]}
        return found

    async def figures(self) -> dict[str, dict[str, str] | Exception]:
        """Figures of each broker (GET_BROKER_RUNTIME_INFO) by its name; the error of one that does not answer.

        Raises ClientError if the name server does not tell its brokers.
        """

        async def of(address: str) -> dict[str, str]:
            table = (await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, {})).get("table")
            if not isinstance(table, dict):
                raise BrokerError(ResponseCode.SYSTEM_ERROR, "its figures cannot be read", address)
            return {"address": address, **{str(name): str(value) for name, value in table.items()}}

        brokers = await self.brokers()
        found = await asyncio.gather(*map(of, brokers.values()), return_exceptions=True)
        answers: dict[str, dict[str, str] | Exception] = {}
        for name, answer in zip(brokers, found, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, Exception):
                raise answer
            answers[name] = answer
        return answers

    async def _ask(self, address: str, code: RequestCode, fields: dict[str, Any]) -> dict[str, Any]:
        ext = {name: str(value) for name, value in fields.items() if value not in ("", None)}
        reply = await self._core.ask(address, code, ext, timeout_ms=self._timeout_ms)
        try:
            document: dict[str, Any] = loads(reply.body)
        except ProtocolError as error:
            raise BrokerError(reply.code, f"its answer cannot be read: {error}", address) from error
        return document
