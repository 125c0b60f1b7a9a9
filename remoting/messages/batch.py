"""Client batches: many messages in the body of one send.

An element: ``total size i32 | magic i32 | CRC i32 | flag i32 | body length i32, body | properties length i16,
properties``.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as struct_error

from remoting.errors import MessageError

__all__ = ["batch_slice", "join_batch", "split_batch"]

_BATCH_HEAD = Struct(">iiiii")
_SHORT = Struct(">h")


def split_batch(body: bytes, most: int = 1 << 31) -> list[tuple[int, bytes, str]]:
    """Split a client batch into (flag, body, properties) each. Raises MessageError if the last element is cut off.

    A batch of more than ``most`` messages raises MessageError; nothing is read behind the first ``most``.

    The elements' own total size, magic and CRC are ignored, as by Apache's broker, because clients fill them
    carelessly.
    """
    elements: list[tuple[int, bytes, str]] = []
    flag: int  # said here, because `unpack_from` does not: compiled, they are numbers then, not any objects
    length: int
    properties_length: int
    at = 0
    end = len(body)
    try:
        while at < end:
            if len(elements) >= most:
                raise MessageError(f"a batch of more than {most} messages: at most {most} are possible")
            _, _, _, flag, length = _BATCH_HEAD.unpack_from(body, at)
            at += 20
            properties_at = at + length + 2
            if length < 0 or properties_at > end:
                raise MessageError(f"batch element {len(elements)}: body of {length} bytes, {end - at} are left")
            (properties_length,) = _SHORT.unpack_from(body, properties_at - 2)
            next_at = properties_at + properties_length
            if properties_length < 0 or next_at > end:
                raise MessageError(f"batch element {len(elements)}: properties of {properties_length} bytes")
            elements.append((flag, body[at : at + length], str(body[properties_at:next_at], "utf-8", "replace")))
            at = next_at
    except struct_error as error:
        raise MessageError(f"batch element {len(elements)} is cut off") from error
    return elements


def batch_slice(body: bytes, at: int, messages_max: int, text_bytes_max: int, number: int = 0) -> tuple[int, int]:
    """Return the end of the slice of a batch that begins at ``at``, and its number of messages.

    The slice ends after ``messages_max`` messages, or after the message with which the sum of the properties reaches
    ``text_bytes_max`` bytes.
    Raises MessageError for a message that cannot be read. Its text names the message by its number in the batch;
    ``number`` is that of the first one of the slice.
    """
    end, count, texts = len(body), 0, 0
    length: int
    size: int
    try:
        while at < end and count < messages_max and texts < text_bytes_max:
            _, _, _, _, length = _BATCH_HEAD.unpack_from(body, at)
            text_at = at + 22 + length
            if length < 0 or text_at > end:
                raise MessageError(f"batch element {number + count}: body of {length} bytes, {end - at - 20} are left")
            (size,) = _SHORT.unpack_from(body, text_at - 2)
            at = text_at + size
            if size < 0 or at > end:
                raise MessageError(f"batch element {number + count}: properties of {size} bytes")
            texts += size
            count += 1
    except struct_error as error:
        raise MessageError(f"batch element {number + count} is cut off") from error
    return at, count


def join_batch(elements: Iterable[tuple[int, bytes, str]]) -> bytes:
    """Join (flag, body, properties) elements into a batch body; raises MessageError for an element that is too
    large."""
    parts: list[bytes] = []
    for flag, body, properties in elements:
        try:
            encoded = properties.encode()
            parts.append(_BATCH_HEAD.pack(22 + len(body) + len(encoded), 0, 0, flag, len(body)))
            parts.append(body)
            parts.append(_SHORT.pack(len(encoded)))
            parts.append(encoded)
        except (struct_error, UnicodeEncodeError) as error:
            remark = f"batch element with flag {flag} and {len(properties)} characters of properties: {error}"
            raise MessageError(remark) from error
    return b"".join(parts)
