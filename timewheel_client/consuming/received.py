"""A message as a consumer gets it.

Its body is decompressed on first use, so that waiting messages take as little memory as they were sent with. It is
never decompressed to more than ``max_body_bytes``: a body of 600 KiB can expand to a gigabyte.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable

from remoting.codes import SysFlag
from remoting.messages.message import StoredMessage, decode_host
from remoting.messages.properties import (
    KEYS,
    RETRY_TOPIC,
    STARTDELIVERTIME,
    TAGS,
    TIMER_DELIVER_MS,
    TW_DUE,
    UNIQ_KEY,
    parse_properties,
)
from timewheel_client.values.arguments import need_int
from timewheel_client.values.delivery_time import MAX_LEVEL
from timewheel_client.values.log import log
from timewheel_client.values.reserved import ReceivedProperties, is_reserved
from timewheel_client.values.routes import MessageQueue

__all__ = ["MAX_BODY_BYTES", "ReceivedMessage"]


MAX_BODY_BYTES = 16 << 20
"""Default of ``max_body_bytes``: four times the brokers' default limit of a message."""

_COMPRESSION_BITS = 0x700
_COMPRESSIONS = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}


class ReceivedMessage:
    """A message that was received and waits for `ack` or `retry`.

    =====================  =============================================================================
    ``topic``              str, where it was sent to (also of a message that is retried)
    ``body``               bytes, decompressed when it is first read
    ``tags``, ``keys``     str or None; list of str
    ``properties``         dict of str to str, all of them, the broker's too
    ``user_properties``    dict of str to str, those that the sender made up
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
    ``compression``        str, empty; "lz4", "zstd" or "zlib" when ``body`` could not be decompressed here,
                           or only to more than ``max_body_bytes``: it is then as it was sent
    =====================  =============================================================================
    """

    __slots__ = (
        "_ack",
        "_body",
        "_compression",
        "_max_body_bytes",
        "_packed",
        "_retry",
        "_sys_flag",
        "born_host",
        "born_ms",
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
        ack: Callable[[ReceivedMessage], None] | None = None,
        retry: Callable[[ReceivedMessage, int], Awaitable[None]] | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        properties = ReceivedProperties(parse_properties(stored.properties))
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
        self._packed = stored.body
        self._sys_flag = stored.sys_flag
        self._max_body_bytes = max_body_bytes
        self._body: bytes | None = None if stored.sys_flag & SysFlag.COMPRESSED else stored.body
        self._compression = ""

    @property
    def body(self) -> bytes:
        """The body, decompressed if possible (see ``compression``)."""
        if self._body is None:
            self._body, self._compression = self._decompress()
        return self._body

    @property
    def compression(self) -> str:
        """The name of the compression that ``body`` still has; empty for none."""
        return self._compression if self.body is not None else ""

    @property
    def packed(self) -> tuple[bytes, int]:
        """The body as it was sent, and the bits of the system flag that tell how it is compressed."""
        return self._packed, self._sys_flag & (SysFlag.COMPRESSED | _COMPRESSION_BITS)

    @property
    def user_properties(self) -> dict[str, str]:
        """The sender's own properties, without those of the system and without tags and keys."""
        return {name: value for name, value in self.properties.items() if not is_reserved(name)}

    async def ack(self) -> None:
        """Mark the message as done: the group will not get it again. A second call is harmless."""
        if self._ack is not None:
            self._ack(self)

    async def retry(self, delay_level: int = 0) -> None:
        """Ask for another delivery: the group gets the message again later, and this delivery counts as done.

        Args:
            delay_level: When: level 1 to 18; 0 lets the broker choose (10 s first, then longer each time); -1 puts
                it into the dead-letter topic ``%DLQ%<group>`` at once. After 16 times it goes there by itself.

        Raises SendError, ConnectionFailedError or RequestTimeoutError; the message then still waits for `ack` or
        `retry`.
        """
        need_int("delay_level", delay_level, -1, MAX_LEVEL)
        if self._retry is not None:
            await self._retry(self, delay_level)

    def _decompress(self) -> tuple[bytes, str]:
        """Decompress a body; if that is not possible here, return it unchanged with the name of the compression."""
        kind = _COMPRESSIONS.get((self._sys_flag & _COMPRESSION_BITS) >> 8, "unknown")
        if kind != "zlib":
            return self._packed, kind
        try:
            inflate = zlib.decompressobj()
            body = inflate.decompress(self._packed, self._max_body_bytes + 1)
            if len(body) > self._max_body_bytes:
                wrong = f"it would have more than {self._max_body_bytes} bytes (max_body_bytes)"
            elif inflate.eof:
                return body, ""
            else:
                wrong = "its end is missing"
        except zlib.error as error:
            wrong = str(error)
        log.error("message %s of %s cannot be decompressed: %s", self.message_id, self.topic, wrong)
        return self._packed, kind

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {self.message_id}, queue={self.queue}, body={self.body!r:.60})"


def _due_ms(properties: dict[str, str]) -> int | None:
    for name in (TW_DUE, TIMER_DELIVER_MS, STARTDELIVERTIME):
        text = properties.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 20:
            return int(text)
    return None
