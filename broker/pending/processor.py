"""Requests about pending messages, codes 370001 to 370006: fields in the header, the answer as JSON in the body.

=======================  ==========================================================================================
PENDING_GET              ``name``, ``topic``
PENDING_CHANGE           ``verb`` (cancel, move, now, restart), ``name``, ``topic``; ``dueMs`` or ``byMs``; ``version``
PENDING_LIST             a query, ``limit``, ``after``
PENDING_COUNT            a query, ``after``
PENDING_CHANGE_MATCHING  a query, ``verb``, ``limit``, ``after``, ``dryRun`` (true unless it says false), ``purge``
PENDING_FORECAST         ``fromMs``, ``toMs``, ``bars``, ``topic``
=======================  ==========================================================================================

A query: ``topic``, ``tag``, ``keyPrefix``, ``dueFromMs``, ``dueToMs``, ``acceptedFromMs``, ``acceptedToMs`` and
``properties`` (a property text; each must have that value). Every verdict is a SUCCESS, with the verdict in the header
as well. INVALID_PARAMETER: the request is not possible, the remark says what to change. SYSTEM_ERROR: the disk; ask
again. With ``purge`` the topic must be one that does not exist: what a deleted topic has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.net.channel import Channel
from broker.net.processor import Handler
from broker.pending.documents import (
    answer_document,
    bulk_document,
    count_document,
    forecast_document,
    page_document,
)
from broker.pending.names import read_name
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.json_dialect import dumps
from store.disk.errors import StoreError
from store.put.pending_api import (
    BULK_MAX,
    PAGE_MAX,
    PendingControl,
    PendingError,
    PendingOrder,
    PendingPlugin,
    PendingVerb,
)
from store.put.pending_fields import number_of, query_of
from store.put.plugin_api import Plugin

if TYPE_CHECKING:
    from broker.tables.topics import Topics

__all__ = ["PendingProcessor"]

Answer = tuple[dict[str, Any], dict[str, str]]
"""The document, and fields of the header."""


class PendingProcessor:
    """Answers requests about pending messages, each in a thread of its own: they read files and wait for the disk.

    Args:
        topics: The broker's table.
        plugins: The first that is a `PendingPlugin` has what is pending.
        store_host: The broker's address as it stands in message ids.
    """

    def __init__(self, *, topics: Topics, plugins: Sequence[Plugin], store_host: Callable[[], bytes]) -> None:
        self._topics = topics
        self._plugin = next((plugin for plugin in plugins if isinstance(plugin, PendingPlugin)), None)
        self._store_host = store_host

    def handlers(self) -> Mapping[int, Handler]:
        """List what it answers."""
        work: dict[RequestCode, Callable[[PendingControl, Mapping[str, str], int], Answer]] = {
            RequestCode.PENDING_GET: self._get,
            RequestCode.PENDING_CHANGE: self._change,
            RequestCode.PENDING_LIST: self._page,
            RequestCode.PENDING_COUNT: self._count,
            RequestCode.PENDING_CHANGE_MATCHING: self._change_matching,
            RequestCode.PENDING_FORECAST: self._forecast,
        }

        async def answer(_channel: Channel, command: RemotingCommand, now_ms: int) -> RemotingCommand:
            if self._plugin is None:
                remark = "no plug-in of this broker can list or change pending messages: set plugins=delay"
                return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            try:
                document, ext = await asyncio.to_thread(
                    work[RequestCode(command.code)], self._plugin.pending, command.ext, now_ms
                )
            except PendingError as error:
                return command.reply(ResponseCode.INVALID_PARAMETER, str(error))
            except StoreError as error:
                return command.reply(ResponseCode.SYSTEM_ERROR, f"{error}; ask again")
            return command.reply(ext=ext, body=dumps(document))

        return dict.fromkeys(work, answer)

    def _get(self, control: PendingControl, ext: Mapping[str, str], _now_ms: int) -> Answer:
        answer = control.get(read_name(ext.get("name", ""), ext.get("topic", ""), self._store_host()))
        return answer_document(answer, self._store_host()), {"verdict": answer.verdict.value}

    def _change(self, control: PendingControl, ext: Mapping[str, str], now_ms: int) -> Answer:
        order = PendingOrder(
            verb=_verb(ext),
            name=read_name(ext.get("name", ""), ext.get("topic", ""), self._store_host()),
            due_ms=number_of(ext, "dueMs"),
            by_ms=number_of(ext, "byMs"),
            version=number_of(ext, "version"),
        )
        answer = control.change(order, now_ms)
        return answer_document(answer, self._store_host()), {"verdict": answer.verdict.value}

    def _page(self, control: PendingControl, ext: Mapping[str, str], _now_ms: int) -> Answer:
        page = control.page(query_of(ext), number_of(ext, "limit", PAGE_MAX) or 0, ext.get("after", ""))
        return page_document(page, self._store_host()), {}

    def _count(self, control: PendingControl, ext: Mapping[str, str], _now_ms: int) -> Answer:
        return count_document(control.count(query_of(ext), ext.get("after", ""))), {}

    def _change_matching(self, control: PendingControl, ext: Mapping[str, str], now_ms: int) -> Answer:
        query = query_of(ext)
        if _flag(ext, "purge", False):
            if not query.topic:
                raise PendingError("purge needs the name of a deleted topic")
            if self._topics.get(query.topic) is not None:
                raise PendingError(f"purge cancels what a deleted topic has left, and topic {query.topic!r:.80} exists")
        bulk = control.change_matching(
            query,
            _verb(ext),
            now_ms,
            limit=number_of(ext, "limit", BULK_MAX) or 0,
            dry_run=_flag(ext, "dryRun", True),
            after=ext.get("after", ""),
            due_ms=number_of(ext, "dueMs"),
            by_ms=number_of(ext, "byMs"),
        )
        return bulk_document(bulk, self._store_host()), {}

    def _forecast(self, control: PendingControl, ext: Mapping[str, str], now_ms: int) -> Answer:
        from_ms = number_of(ext, "fromMs", now_ms) or 0
        to_ms = number_of(ext, "toMs", from_ms + 3_600_000) or 0
        return forecast_document(
            control.forecast(from_ms, to_ms, number_of(ext, "bars", 60) or 0, ext.get("topic", ""))
        ), {}


def _verb(ext: Mapping[str, str]) -> PendingVerb:
    text = ext.get("verb", "")
    try:
        return PendingVerb(text)
    except ValueError:
        raise PendingError(f"verb {text!r:.40}: expected {', '.join(verb.value for verb in PendingVerb)}") from None


def _flag(ext: Mapping[str, str], field: str, otherwise: bool) -> bool:
    text = ext.get(field, "").lower()
    if text not in ("", "true", "false"):
        raise PendingError(f"{field} is true or false, found {text!r:.40}")
    return text == "true" if text else otherwise
