"""A frame by itself, as tests read it."""

from __future__ import annotations

from remoting.command import ProtocolError, RemotingCommand, decode_command


def decode_frame(frame: bytes) -> RemotingCommand:
    """Read a frame that begins behind its length word. Raises ProtocolError."""
    if len(frame) < 4:
        raise ProtocolError(f"frame of {len(frame)} bytes has no header length")
    return decode_command(frame, int.from_bytes(frame[:4], "big"), 4, len(frame))
