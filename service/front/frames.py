"""Cuts the bytes of one connection into frames, each unchanged and with the command that it holds."""

from __future__ import annotations

from dataclasses import dataclass

from remoting.codes import MAX_FRAME_BYTES
from remoting.command import ProtocolError, RemotingCommand, decode_command

__all__ = ["HEADER_MAX_BYTES", "FrameCutter", "PassedFrame"]

HEADER_MAX_BYTES = 1 << 20
"""The longest header taken from a client: properties have 32 KiB at most."""


@dataclass(frozen=True, slots=True)
class PassedFrame:
    """A frame: its bytes, which are passed on unchanged, and its decoded command."""

    raw: bytes
    command: RemotingCommand


class FrameCutter:
    """Cuts a byte stream into frames, like `remoting.connection.FrameDecoder`, and keeps the bytes of each frame.

    Args:
        header_max_bytes: The longest header accepted.
    """

    def __init__(self, header_max_bytes: int = HEADER_MAX_BYTES) -> None:
        self._header_max_bytes = header_max_bytes
        self._rest = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Buffered bytes of an unfinished frame."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[PassedFrame]:
        """Add bytes and return the frames that are complete now.

        Raises ProtocolError at the first bytes that are no frame. Then the connection must be closed.
        """
        rest = self._rest
        rest += data
        frames: list[PassedFrame] = []
        at, end = 0, len(rest)
        while end - at >= 4:
            size = 4 + int.from_bytes(rest[at : at + 4], "big")
            if not 8 <= size <= MAX_FRAME_BYTES:
                raise ProtocolError(f"frame of {size} bytes; 8 to {MAX_FRAME_BYTES} are allowed")
            if end - at < 8:
                break
            word = int.from_bytes(rest[at + 4 : at + 8], "big")
            header = word & 0xFFFFFF
            if header > self._header_max_bytes:
                raise ProtocolError(f"header of {header} bytes, at most {self._header_max_bytes} are allowed")
            if end - at < size:
                break
            raw = bytes(rest[at : at + size])
            frames.append(PassedFrame(raw, decode_command(raw, word, 8, size)))
            at += size
        if at:
            del rest[:at]
        return frames
