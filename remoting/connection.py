"""Bytes of one connection in, commands out.

A frame that is complete in one read is decoded in place: its body is one slice, and nothing is copied twice. Only the
bytes of an unfinished frame at the end are kept and joined to the next read. A frame longer than a read is gathered in
a growing buffer, so that a long frame in many pieces costs linear time.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from remoting.codes import MAX_FRAME_BYTES
from remoting.command import ProtocolError, RemotingCommand, decode_command, decode_json

__all__ = ["FrameDecoder"]

_WORDS: Final = Struct(">II")
_TLS_HANDSHAKE = 0x16


class FrameDecoder:
    """Cuts a byte stream into commands.

    Args:
        max_frame_bytes: The longest frame accepted, length word included.
        max_header_bytes: The longest header accepted. A server has to read headers before it knows who sends them; a
            client takes those of its broker, where a batch's reply has an id for each message.
        most: The most commands of one `feed`. If ``more`` is set afterwards, call ``feed(b"")`` for the next ones.
    """

    __slots__ = ("_max_frame_bytes", "_max_header_bytes", "_most", "_need", "_rest", "more")

    def __init__(
        self, max_frame_bytes: int = MAX_FRAME_BYTES, max_header_bytes: int = 0xFFFFFF, most: int = 1 << 30
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._max_header_bytes = max_header_bytes
        self._most = most
        self.more = False
        """True if the buffered bytes may contain whole commands."""
        self._rest: bytes | bytearray = b""
        self._need = 0

    @property
    def pending_bytes(self) -> int:
        """Number of kept bytes of an unfinished frame."""
        return len(self._rest)

    def feed(self, data: bytes | bytearray | memoryview) -> list[RemotingCommand]:
        """Add bytes that were read and return the commands that are complete now, in order.

        Raises ProtocolError at the first bytes that are not a frame. Commands before them in the same read are lost,
        and the connection must be closed.
        """
        rest = self._rest
        if rest:
            if len(rest) + len(data) < self._need:
                if type(rest) is not bytearray:
                    rest = self._rest = bytearray(rest)
                rest += data
                return []
            # Bytes, even if `rest` is a bytearray: the parts of commands are slices of it.
            whole = b"".join((rest, data))
        else:
            # A copy: the next read goes into the same buffer, and bodies of commands are parts of these bytes.
            whole = data if isinstance(data, bytes) else bytes(data)
        commands: list[RemotingCommand] = []
        total: int  # said here, because `unpack_from` does not: compiled, they are numbers then, not any objects
        header_word: int
        self.more = False
        at = 0
        available = len(whole)
        while available - at >= 8:
            total, header_word = _WORDS.unpack_from(whole, at)
            end = at + 4 + total
            if total < 4 or end - at > self._max_frame_bytes:
                raise self._no_frame(total)
            if header_word & 0xFFFFFF > self._max_header_bytes:
                raise ProtocolError(
                    f"header of {header_word & 0xFFFFFF} bytes, at most {self._max_header_bytes} are allowed"
                )
            if end > available:
                self._need = end - at
                break
            body_at = at + 8 + header_word
            # The word's highest byte is the serialize type. Any but 0 (JSON) would move `body_at` far behind `end`.
            if body_at <= end:
                commands.append(decode_json(whole[at + 8 : body_at], whole[body_at:end]))
            else:
                commands.append(decode_command(whole, header_word, at + 8, end))
            at = end
            if len(commands) >= self._most:
                self.more = at < available
                # So that `feed(b"")` goes on, although it brings no bytes.
                self._need = 0
                break
        else:
            self._need = 4
            if available - at >= 4:
                # The length alone may show a peer of another protocol: it is refused without waiting for more.
                total = int.from_bytes(whole[at : at + 4], "big")
                if total < 4 or total + 4 > self._max_frame_bytes:
                    raise self._no_frame(total)
                self._need = 8
        self._rest = whole[at:] if at else whole
        return commands

    def _no_frame(self, total: int) -> ProtocolError:
        if total >> 24 == _TLS_HANDSHAKE:
            return ProtocolError("peer begins a TLS handshake, which is not served here")
        return ProtocolError(f"frame of {total + 4} bytes; 8 to {self._max_frame_bytes} are allowed")
