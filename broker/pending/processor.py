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
from remoting.messages.properties import parse_properties
from store.disk.errors import StoreError
from store.put.pending_api import (
    BULK_MAX,
    PAGE_MAX,
    PendingControl,
    PendingError,
    PendingOrder,
    PendingPlugin,
    PendingQuery,
    PendingVerb,
)
from store.put.plugin_api import Plugin

if TYPE_CHECKING:
    from broker.tables.topics import Topics

__all__ = ["PendingProcessor"]

NUMBER_CHARS_MAX = 20
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
                remark = "no plug-in of this broker keeps messages that can be seen and changed"
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
            due_ms=_number(ext, "dueMs"),
            by_ms=_number(ext, "byMs"),
            version=_number(ext, "version"),
        )
        answer = control.change(order, now_ms)
        return answer_document(answer, self._store_host()), {"verdict": answer.verdict.value}

    def _page(self, control: PendingControl, ext: Mapping[str, str], _now_ms: int) -> Answer:
        page = control.page(_query(ext), _number(ext, "limit", PAGE_MAX) or 0, ext.get("after", ""))
        return page_document(page, self._store_host()), {}

    def _count(self, control: PendingControl, ext: Mapping[str, str], _now_ms: int) -> Answer:
        return count_document(control.count(_query(ext), ext.get("after", ""))), {}

    def _change_matching(self, control: PendingControl, ext: Mapping[str, str], now_ms: int) -> Answer:
        query = _query(ext)
        if _flag(ext, "purge", False) and (not query.topic or self._topics.get(query.topic) is not None):
            raise PendingError(f"purge is for what a deleted topic has left: topic {query.topic!r:.80} exists")
        bulk = control.change_matching(
            query,
            _verb(ext),
            now_ms,
            limit=_number(ext, "limit", BULK_MAX) or 0,
            dry_run=_flag(ext, "dryRun", True),
            after=ext.get("after", ""),
            due_ms=_number(ext, "dueMs"),
            by_ms=_number(ext, "byMs"),
        )
        return bulk_document(bulk, self._store_host()), {}

    def _forecast(self, control: PendingControl, ext: Mapping[str, str], now_ms: int) -> Answer:
        from_ms = _number(ext, "fromMs", now_ms) or 0
        to_ms = _number(ext, "toMs", from_ms + 3_600_000) or 0
        return forecast_document(
            control.forecast(from_ms, to_ms, _number(ext, "bars", 60) or 0, ext.get("topic", ""))
        ), {}


def _query(ext: Mapping[str, str]) -> PendingQuery:
    return PendingQuery(
        topic=ext.get("topic", ""),
        tag=ext.get("tag", ""),
        key_prefix=ext.get("keyPrefix", ""),
        due_from_ms=_number(ext, "dueFromMs"),
        due_to_ms=_number(ext, "dueToMs"),
        accepted_from_ms=_number(ext, "acceptedFromMs"),
        accepted_to_ms=_number(ext, "acceptedToMs"),
        properties=tuple(parse_properties(ext.get("properties", "")).items()),
    )


def _verb(ext: Mapping[str, str]) -> PendingVerb:
    text = ext.get("verb", "")
    try:
        return PendingVerb(text)
    except ValueError:
        raise PendingError(f"verb {text!r:.40}: there are {', '.join(verb.value for verb in PendingVerb)}") from None


def _number(ext: Mapping[str, str], field: str, otherwise: int | None = None) -> int | None:
    text = ext.get(field)
    if text is None or not text:
        return otherwise
    digits = text.removeprefix("-")
    if len(text) > NUMBER_CHARS_MAX or not digits.isascii() or not digits.isdecimal():
        raise PendingError(f"{field} = {text!r:.40} is not a whole number of at most {NUMBER_CHARS_MAX} characters")
    return int(text)


def _flag(ext: Mapping[str, str], field: str, otherwise: bool) -> bool:
    text = ext.get(field, "").lower()
    if text not in ("", "true", "false"):
        raise PendingError(f"{field} is true or false, found {text!r:.40}")
    return text == "true" if text else otherwise
