"""`ServiceClient`: looks at and changes what waits in a delay service beside a cluster. See docs/cluster.md.

An entry is named by where its send was stored, ``BROKER/QUEUE/OFFSET``: the queue of the entry topic and the offset in
it, both in the answer to every send (`SendResult`); it is also the property ``TW_DELAY_ID`` of the delivered message.

A command is a record that is sent into the same queue, and so is its verdict: the client reads on behind its command
until it finds it. A verdict of an owner that another one has followed meanwhile is void, which can be seen there, too.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from remoting.codes import PullSysFlag, RequestCode, ResponseCode
from remoting.errors import ProtocolError
from remoting.headers import need_long
from remoting.json_dialect import dumps, loads
from remoting.messages.message import StoredMessage
from remoting.messages.properties import format_properties, get_property
from remoting.pending_rules import past_fault, time_fault
from timewheel_client.consuming.pulled import read_pulled
from timewheel_client.net.client_core import now_ms
from timewheel_client.net.refusals import refusal_of
from timewheel_client.net.tls import Tls
from timewheel_client.net.tries import STORED, send_header
from timewheel_client.pending.cursors import cursors_in
from timewheel_client.pending.pending_client import PendingClient
from timewheel_client.pending.pending_values import (
    ChangeResult,
    MatchingResult,
    TopicWaiting,
    WaitingMessage,
    Which,
    topic_of,
)
from timewheel_client.values.arguments import need_text
from timewheel_client.values.errors import (
    BrokerError,
    ClientError,
    ClosedError,
    ConnectionFailedError,
    NoRouteError,
    RequestTimeoutError,
)

__all__ = ["ServiceClient"]

TIMEOUT_MS = 30_000
PULL_MS = 5_000
READ_AGAIN_MS = 200
AT_ONCE = 64
ANSWERS_KEPT = 10_000
_QUESTIONS = {
    RequestCode.PENDING_LIST: "list",
    RequestCode.PENDING_COUNT: "count",
    RequestCode.PENDING_FORECAST: "forecast",
}


class ServiceClient(PendingClient):
    """Sees and changes what waits in a delay service.

    Args:
        namesrv: Name servers, ``HOST:PORT;HOST:PORT``.
        topic: The entry topic.
        broker: The name of the only broker whose shards are asked; empty for all.
        timeout_ms: For one verdict. Some seconds pass where no instance owns the shard at the moment.
        tls, access_key, secret_key: As for `Producer`; the account needs PUB and SUB of the entry topic.

    A verdict that has not come in time may come later: `RequestTimeoutError`; ask again with `get`.

    >>> async def stop(entry: str) -> bool:
    ...     async with ServiceClient("127.0.0.1:9876") as pending:
    ...         return bool(await pending.cancel(entry))  # "broker-a/3/1742"
    """

    def __init__(
        self,
        namesrv: str | Sequence[str],
        *,
        topic: str = "TIMEWHEEL",
        broker: str = "",
        timeout_ms: int = TIMEOUT_MS,
        tls: Tls = False,
        access_key: str | None = None,
        secret_key: str | None = None,
    ) -> None:
        super().__init__(
            namesrv, broker=broker, timeout_ms=timeout_ms, tls=tls, access_key=access_key, secret_key=secret_key
        )
        self._entry_topic = need_text("topic", topic)

    # ------------------------------------------------------------------------------------------------ one message

    async def get(self, name: str, *, topic: str = "") -> ChangeResult:
        """Ask what became of an entry: ``done`` if it waits, ``too_late``, ``cancelled``, ``unknown``.

        Of one that waits, ``due_ms`` is when it is due, and ``where`` its present place: another one if it was rolled.
        """
        del topic
        return await self._of(name, "get", {})

    async def _change(self, verb: str, name: str, topic: str, version: int | None, **times: int | None) -> ChangeResult:
        del topic
        if verb == "restart" or version is not None:
            raise ClientError(f"a service has no {'restart' if verb == 'restart' else 'versions'}: move it to a time")
        due_ms, by_ms = times.get("dueMs"), times.get("byMs")
        if verb == "cancel":
            return await self._of(name, "cancel", {})
        if verb == "now":
            return await self._of(name, "move", {"TW_DELIVER_MS": "0"})
        if (due_ms is None) == (by_ms is None):
            raise ValueError("move takes due_ms (epoch ms) or by_ms (ms), one of the two")
        if by_ms is not None:
            return await self._of(name, "move", {"TW_BY_MS": str(by_ms)})
        fault = time_fault("due_ms", due_ms or 0) or past_fault("due_ms", due_ms or 0, now_ms())
        if fault:
            raise ClientError(fault)
        return await self._of(name, "move", {"TW_DELIVER_MS": str(due_ms)})

    async def _of(self, name: str, kind: str, properties: dict[str, str]) -> ChangeResult:
        shard, _, offset = need_text("name", name).rpartition("/")
        broker, slash, queue = shard.rpartition("/")
        if not slash or not all(text.isascii() and text.isdecimal() and len(text) < 19 for text in (queue, offset)):
            raise ValueError(f"{name:.80}: an entry is named BROKER/QUEUE/OFFSET, by where its send was stored")
        found = await self._verdict(broker, int(queue), {"TW_KIND": kind, "TW_ABOUT": offset, **properties}, b"-")
        number = get_property(found.properties, "TW_DELIVER_MS") or ""
        verdict = get_property(found.properties, "TW_VERDICT") or ""
        return ChangeResult(
            verdict="done" if verdict == "pending" else verdict,
            detail="it waits" if verdict == "pending" else get_property(found.properties, "TW_DETAIL") or "",
            id=name,
            broker=broker,
            where=f"{shard}/{get_property(found.properties, 'TW_ENTRY')}" if verdict == "pending" else "",
            due_ms=int(number) if number.isdecimal() else 0,
        )

    # ------------------------------------------------------------------------------------------------ many messages

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
        """Change all messages that match: they are listed, and changed one by one.

        A message without a verdict in time is ``undecided``: its command may still be obeyed. A message whose command
        was not stored is ``refused`` and unchanged. If that is so of the first ones, the error is raised, and nothing
        was changed.

        An interval is added to the due time that a message has when it is listed. A call that was cut short may be
        repeated if the due range has both ends and is not longer than the interval: moved messages then do not match,
        or get the same time again.

        Raises ValueError for ``move`` without exactly one of ``due_ms`` and ``by_ms``, ClientError for a query that is
        too wide.
        """
        if verb == "move" and (due_ms is None) == (by_ms is None):
            raise ValueError("move takes due_ms (epoch ms) or by_ms (ms), one of the two")
        if purge or which.width_fault:
            raise ClientError(which.width_fault or "a service has no purge")
        cursors = cursors_in(after, await self.brokers())
        found: list[WaitingMessage] = []
        unfinished: dict[str, str] = {}
        async for message, cursor in self._list(which, None if limit is None else limit + 1, cursors):
            if len(found) == limit:
                # An instance of an older version tells no cursors.
                unfinished = cursors if all(cursors[listed.broker] for listed in found) else {}
                break
            found.append(message)
            cursors[message.broker] = cursor
        answers: list[ChangeResult] = []
        verdicts: Counter[str] = Counter()
        if dry_run:
            answers = [ChangeResult(verdict="done", detail="would be changed", id=message.id) for message in found]
            verdicts["done"] = len(found)
        for begin in range(0, 0 if dry_run else len(found), AT_ONCE):
            some = found[begin : begin + AT_ONCE]
            told = await asyncio.gather(
                *(self._change_listed(message, verb, due_ms, by_ms) for message in some), return_exceptions=True
            )
            failed = [result for result in told if isinstance(result, BaseException)]
            if not answers and len(failed) == len(told) and not any(map(_may_stand, failed)):
                raise failed[0]
            answers += [_told_of(message.id, result) for message, result in zip(some, told, strict=True)]
        if not dry_run:
            verdicts.update(result.verdict for result in answers)
        return MatchingResult(
            verdicts=dict(verdicts), answers=answers[:ANSWERS_KEPT], dry_run=dry_run, unfinished=unfinished
        )

    async def _change_listed(
        self, message: WaitingMessage, verb: str, due_ms: int | None, by_ms: int | None
    ) -> ChangeResult:
        if verb == "move" and by_ms is not None:
            due_ms = message.due_ms + by_ms
            fault = past_fault("due_ms", due_ms, now_ms())
            if fault:
                return ChangeResult(verdict="refused", detail=fault, id=message.id, broker=_broker_of(message.id))
        return await self._change(verb, message.id, "", None, dueMs=due_ms if verb == "move" else None)

    async def topics(self, which: Which | None = None) -> list[TopicWaiting]:
        """Add up by topic what waits, largest first, over all shards; each message is read."""
        fields = (which or Which()).fields()
        found: dict[str, TopicWaiting] = {}

        async def of(address: str) -> None:
            after = ""
            while True:
                document = await self._question(address, "topics", {**fields, "after": after})
                for row in map(topic_of, document["topics"]):
                    found[row.topic] = row if row.topic not in found else found[row.topic].plus(row)
                after = document["next"]
                if not after:
                    return

        await asyncio.gather(*map(of, await self.brokers()))
        return sorted(found.values(), key=lambda row: (-row.count, row.topic))

    async def brokers(self) -> dict[str, str]:
        """The shards that are asked. Raises NoRouteError if there is none of the broker given."""
        route = await self._core.route(self._entry_topic)
        names = [f"{queue.broker_name}/{queue.queue_id}" for queue in route.read_queues if queue in route.write_queues]
        found = {name: name for name in names if not self._broker or name.rpartition("/")[0] == self._broker}
        if not found:
            raise NoRouteError(f"topic {self._entry_topic} has no queue on broker {self._broker!r}")
        return found

    async def _ask(self, address: str, code: RequestCode, fields: dict[str, Any]) -> dict[str, Any]:
        what = _QUESTIONS.get(code)
        if what is None:
            raise ClientError(f"a service does not answer {code.name}")
        return await self._question(address, what, fields)

    async def _question(self, address: str, what: str, fields: dict[str, Any]) -> dict[str, Any]:
        if fields.get("keyPrefix"):
            raise ClientError("a service has no delay keys")
        broker, _, queue = address.rpartition("/")
        given = {name: str(value) for name, value in fields.items() if value not in ("", None)}
        found = await self._verdict(broker, int(queue), {"TW_KIND": "ask"}, dumps({"what": what, **given}))
        try:
            document: dict[str, Any] = loads(found.body)
        except ProtocolError as error:
            raise ClientError(f"the answer of {address} cannot be read: {error}") from error
        if "error" in document:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, str(document["error"]), address)
        return document

    # ------------------------------------------------------------------------------------------------ the queue

    async def _verdict(self, broker: str, queue: int, properties: dict[str, str], body: bytes) -> StoredMessage:
        """Send a command, and read on behind it until its verdict stands there. Raises ClientError.

        RequestTimeoutError says that the command may stand; any other error, that there is none.
        """
        address = await self._address(broker)
        command = await self._store(address, queue, properties, body)
        until = time.monotonic() + self._timeout_ms / 1000
        offset, takeover, trouble = command + 1, -1, ""
        while True:
            left_ms = int((until - time.monotonic()) * 1000)
            if left_ms <= 0:
                why = trouble or (
                    f"no instance of the service owns {broker}/{queue} now, or whether the message was delivered is "
                    "not known yet"
                )
                raise RequestTimeoutError(
                    f"no verdict within {self._timeout_ms} ms: {why}. The command stands, and will be decided"
                )
            try:
                messages, offset = await self._read(address, queue, offset, min(left_ms, PULL_MS))
            except ClosedError:
                raise
            except (ClientError, ProtocolError) as error:  # the command is stored, whatever becomes of the broker
                trouble = f"it cannot be read on behind the command: {error}"
                if isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION:
                    raise RequestTimeoutError(f"{trouble}. The command stands, and will be decided") from error
                await asyncio.sleep(min(READ_AGAIN_MS, left_ms) / 1000)
                continue
            trouble = ""
            for message in messages:
                kind = get_property(message.properties, "TW_KIND")
                if kind == "takeover":
                    takeover = message.queue_offset
                about = get_property(message.properties, "TW_ABOUT") if kind == "verdict" else ""
                generation = get_property(message.properties, "TW_GENERATION")
                if about == str(command) and (takeover < 0 or generation == str(takeover)):
                    return message

    async def _store(self, address: str, queue: int, properties: dict[str, str], body: bytes) -> int:
        """Send a command; its offset. Raises ClientError."""
        ext = send_header(self._group, self._entry_topic, format_properties(properties))
        ext["e"] = str(queue)
        await self._core.connections.get(address)  # what fails before it is written is surely not stored
        try:
            sent = await self._core.connections.request(
                address, RequestCode.SEND_MESSAGE_V2, ext, body, timeout_ms=self._timeout_ms
            )
        except (ConnectionFailedError, RequestTimeoutError) as error:
            raise RequestTimeoutError(
                f"{error}: it is not known whether the command was stored; if it was, it stands, and will be decided"
            ) from error
        if sent.code not in STORED:
            refused = BrokerError(sent.code, sent.remark, address)
            if refusal_of(sent.code, sent.remark) is not None:
                raise refused
            raise RequestTimeoutError(
                f"{refused}: that does not say whether the command was stored; if so, it stands, and will be decided"
            )
        try:
            return need_long(sent.ext, "queueOffset")
        except ProtocolError as error:
            raise RequestTimeoutError(
                f"the answer to a command of {address}: {error}. The command stands, and will be decided"
            ) from None

    async def _address(self, broker: str) -> str:
        route = await self._core.route(self._entry_topic)
        address = route.brokers.get(broker, {}).get(0)
        if address is None:
            self._core.refresh_soon(self._entry_topic)
            raise NoRouteError(f"topic {self._entry_topic} has no broker {broker!r:.80} with a master")
        return address

    @property
    def _group(self) -> str:
        return f"TIMEWHEEL_SERVICE_{self._entry_topic}"

    async def _read(self, address: str, queue: int, offset: int, wait_ms: int) -> tuple[list[StoredMessage], int]:
        ext = {
            "consumerGroup": self._group,
            "topic": self._entry_topic,
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": "256",
            "sysFlag": str(int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(wait_ms),
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        reply = await self._core.connections.request(
            address, RequestCode.PULL_MESSAGE, ext, timeout_ms=wait_ms + TIMEOUT_MS
        )
        if reply.code == ResponseCode.SUCCESS:
            found = [message for message in read_pulled(reply.body).records if isinstance(message, StoredMessage)]
            return [m for m in found if m.queue_offset >= offset], need_long(reply.ext, "nextBeginOffset")
        if reply.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            return [], offset
        raise BrokerError(reply.code, reply.remark, address)


def _may_stand(error: BaseException) -> bool:
    return isinstance(error, RequestTimeoutError)


def _told_of(name: str, result: ChangeResult | BaseException) -> ChangeResult:
    """The result for one of many messages. Raises errors that are no answer of the cluster."""
    if isinstance(result, ChangeResult):
        return result
    if not isinstance(result, ClientError):
        raise result
    verdict = "undecided" if _may_stand(result) else "refused"
    return ChangeResult(verdict=verdict, detail=str(result), id=name, broker=_broker_of(name))


def _broker_of(name: str) -> str:
    return name.rpartition("/")[0].rpartition("/")[0]
