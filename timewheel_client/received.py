"""A message as a consumer gets it."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable

from remoting.codes import SysFlag
from remoting.message import StoredMessage, decode_host
from remoting.properties import (
    KEYS,
    RETRY_TOPIC,
    STARTDELIVERTIME,
    TAGS,
    TIMER_DELIVER_MS,
    TW_DUE,
    UNIQ_KEY,
    parse_properties,
)
from timewheel_client.routes import MessageQueue

__all__ = ["Message"]

_COMPRESSION_BITS = 0x700
_COMPRESSIONS = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}


class Message:
    """A message that was received and waits for `ack` or `retry`.

    =====================  =============================================================================
    ``topic``              str, where it was sent to (also of a message that is retried)
    ``body``               bytes, decompressed
    ``tags``, ``keys``     str or None; list of str
    ``properties``         dict of str to str, all of them, the broker's too
    ``message_id``         str, the producer's id (UNIQ_KEY)
    ``offset_message_id``  str, the broker's id: its address and the position in its log
    ``queue``              `MessageQueue` that it was read from (of a retry: one of the retry topic's)
    ``queue_offset``       int, its number there
    ``log_offset``         int, its position in the broker's log
    ``flag``               int, the sender's number
    ``born_ms``            int, when it was sent, by the sender's clock (epoch ms)
    ``born_host``          (ip, port) of the sender
    ``store_ms``           int, when it was stored for delivery, by the broker's clock (epoch ms)
    ``due_ms``             int or None, when it was to be delivered (epoch ms)
    ``received_ms``        int, when it arrived here (epoch ms)
    ``reconsume_times``    int, how often it was retried
    ``compression``        str, empty; "lz4" or "zstd" when ``body`` could not be decompressed here
    =====================  =============================================================================
    """

    __slots__ = (
        "_ack",
        "_retry",
        "body",
        "born_host",
        "born_ms",
        "compression",
        "due_ms",
        "flag",
        "keys",
        "log_offset",
        "message_id",
        "offset_message_id",
        "properties",
        "queue",
        "queue_offset",
        "received_ms",
        "reconsume_times",
        "store_ms",
        "tags",
        "topic",
    )

    def __init__(
        self,
        stored: StoredMessage,
        queue: MessageQueue,
        received_ms: int,
        ack: Callable[[Message], None] | None = None,
        retry: Callable[[Message, int], Awaitable[None]] | None = None,
    ) -> None:
        properties = parse_properties(stored.properties)
        self._ack = ack
        self._retry = retry
        self.queue = queue
        self.received_ms = received_ms
        self.properties = properties
        self.topic = properties.get(RETRY_TOPIC, stored.topic)
        self.tags = properties.get(TAGS)
        self.keys = properties.get(KEYS, "").split()
        self.offset_message_id = stored.message_id
        self.message_id = properties.get(UNIQ_KEY, self.offset_message_id)
        self.queue_offset = stored.queue_offset
        self.log_offset = stored.offset
        self.flag = stored.flag
        self.born_ms = stored.born_ms
        self.born_host = decode_host(stored.born_host)
        self.store_ms = stored.store_ms
        self.reconsume_times = stored.reconsume_times
        self.due_ms = _due_ms(properties)
        self.body, self.compression = _decompress(stored.body, stored.sys_flag)

    async def ack(self) -> None:
        """Say that it is done with: the group will not get it again. Saying so twice is harmless."""
        if self._ack is not None:
            self._ack(self)

    async def retry(self, delay_level: int = 0) -> None:
        """Give it back: the group gets it again later, and this delivery of it counts as done.

        Args:
            delay_level: When: level 1 to 18; 0 lets the broker choose (10 s first, then longer each time); -1 puts
                it into the dead-letter topic ``%DLQ%<group>`` at once. After 16 times it goes there by itself.

        Raises SendError, ConnectionFailedError or RequestTimeoutError; it is then still waiting for `ack` or `retry`.
        """
        if self._retry is not None:
            await self._retry(self, delay_level)

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {self.message_id}, queue={self.queue}, body={self.body!r:.60})"


def _due_ms(properties: dict[str, str]) -> int | None:
    for name in (TW_DUE, TIMER_DELIVER_MS, STARTDELIVERTIME):
        text = properties.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def _decompress(body: bytes, sys_flag: int) -> tuple[bytes, str]:
    """Undo the sender's compression; what the standard library cannot undo stays as it is, with its name."""
    if not sys_flag & SysFlag.COMPRESSED:
        return body, ""
    kind = _COMPRESSIONS.get((sys_flag & _COMPRESSION_BITS) >> 8, "unknown")
    if kind == "zlib":
        try:
            return zlib.decompress(body), ""
        except zlib.error:
            pass
    return body, kind
