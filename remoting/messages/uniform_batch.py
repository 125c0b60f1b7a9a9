"""Client batches whose messages have the same form, as columns: nothing is decoded, no object is made for a message.

The messages of a batch come from one program, so their properties nearly always have the same names in the same
order, and only the values differ. Then one look at the names says what all of them are (timed, with a level, with
keys), and a value is found by its place. For two messages with two properties each, joined with the separator::

    UNIQ_KEY 1 a 2 WAIT 1 true 2 | 2 | UNIQ_KEY 1 b 2 WAIT 1 true 2        (1 and 2 are the bytes 0x01 and 0x02)

splitting at 0x02 gives ``UNIQ_KEY 1 a``, ``WAIT 1 true``, nothing, and so on: every third piece from the first is a
UNIQ_KEY, every third from the second a WAIT, every third from the third is empty. One count in C for each column
proves that all its pieces are as expected. So a batch costs about 0.3 µs a message, compiled or not.

Unusual batches (other names, another order, an empty pair, bytes that are not UTF-8, an element that is cut off) have
no such columns; `remoting.messages.batch.split_batch` reads every batch.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final

import orjson

from remoting.messages.record import MAX_PROPERTIES_BYTES, Message

__all__ = ["UniformBatch", "split_uniform", "whole_numbers"]

_FLAG_AND_LENGTH = Struct(">12xii")
_SEPARATOR: Final = b"\x02"
_NAMES_MAX: Final = 64
_DIGITS_MAX: Final = 19
"""More might not fit 64 bits."""


class UniformBatch:
    """The messages of a batch as columns.

    ==============  ==================================================================================
    ``message``     `Message`, what all have in common; its flag, body and properties mean nothing
    ``flags``       list of int
    ``bodies``      list of bytes
    ``texts``       list of bytes: the property texts, each empty or with its last separator
    ``names``       tuple of str: the names of each text's properties in their order, none twice
    ``body_max``    int, bytes of the longest body
    ``text_max``    int, bytes of the longest text
    ==============  ==================================================================================
    """

    __slots__ = ("_pieces", "bodies", "body_max", "flags", "message", "names", "text_max", "texts")

    def __init__(
        self,
        message: Message,
        flags: list[int],
        bodies: list[bytes],
        texts: list[bytes],
        names: tuple[str, ...],
        pieces: list[bytes],
        body_max: int,
        text_max: int,
    ) -> None:
        """Use `split_uniform`."""
        self.message = message
        self.flags = flags
        self.bodies = bodies
        self.texts = texts
        self.names = names
        self._pieces = pieces
        self.body_max = body_max
        self.text_max = text_max

    def __len__(self) -> int:
        return len(self.bodies)

    def values(self, name: str) -> list[bytes] | None:
        """The values of a property, one for each message; None if they have no such property. A value may be empty."""
        if name not in self.names:
            return None
        column = _column(self._pieces, self.names.index(name), len(self.names))
        return column.split(_mark(name.encode()))[1:]


def split_uniform(
    message: Message, data: bytes, most: int = 1 << 31, text_bytes_max: int = 1 << 31
) -> UniformBatch | None:
    """Split a client batch into columns; None if its elements differ in form, cannot be read, or are too many.

    ``text_bytes_max``: the most bytes that all properties together may have.
    """
    flags: list[int] = []
    bodies: list[bytes] = []
    texts: list[bytes] = []
    # Said here, because `unpack` does not say it: compiled, each line of the loop would else be calls for any objects.
    flag: int
    length: int
    body_max = text_max = at = 0
    end = len(data)
    unpack = _FLAG_AND_LENGTH.unpack_from
    try:
        while at < end:
            if len(flags) >= most:
                return None
            flag, length = unpack(data, at)
            body_at = at + 20
            text_at = body_at + length + 2
            if length < 0 or text_at > end:
                return None
            text_bytes = data[text_at - 2] << 8 | data[text_at - 1]
            at = text_at + text_bytes
            # `>=`: a separator may be added below.
            if at > end or text_bytes >= MAX_PROPERTIES_BYTES:
                return None
            text = data[text_at:at]
            if text_bytes and data[at - 1] != 2:
                text += _SEPARATOR
            # Here and not by `max` afterwards: compiled, a comparison of two numbers is not a call.
            if length > body_max:
                body_max = length
            if len(text) > text_max:
                text_max = len(text)
            flags.append(flag)
            bodies.append(data[body_at : text_at - 2])
            texts.append(text)
    except struct_error:
        return None
    if not texts:
        return None
    if not texts[0]:
        return None if any(texts) else UniformBatch(message, flags, bodies, texts, (), [], body_max, 0)
    # The trick: one text of all messages. `split` cuts it into pairs in C, and a slice with the step ``names + 1`` is
    # then one property of all messages (`_column`).
    joined = _SEPARATOR.join(texts)
    if len(joined) > text_bytes_max:
        return None
    names = _names(texts[0])
    if names is None or not _is_text(joined):
        return None
    pieces = joined.split(_SEPARATOR)
    if not _are_columns(pieces, names, len(texts)):
        return None
    columns = tuple([name.decode() for name in names])
    return UniformBatch(message, flags, bodies, texts, columns, pieces, body_max, text_max)


def whole_numbers(values: list[bytes]) -> list[int] | None:
    """Read a column of numbers of at most 19 ASCII digits each; None if a value is anything else.

    >>> whole_numbers([b"5", b"007"]), whole_numbers([b"5", b""]), whole_numbers([b"1e3"])
    ([5, 7], None, None)
    """
    if not all(values) or max(map(len, values)) > _DIGITS_MAX or not b"".join(values).isdigit():
        return None
    try:
        # The trick: as one JSON array they are read in C, in a third of the time that a call of `int` for each takes.
        numbers: list[int] = orjson.loads(b"[%b]" % b",".join(values))
    except orjson.JSONDecodeError:  # a zero leads
        return list(map(int, values))
    return numbers


def _names(text: bytes) -> list[bytes] | None:
    """The names in a property text; None if it has a pair without one, or one twice, or more than anybody writes."""
    if text.count(_SEPARATOR) > _NAMES_MAX:
        return None
    names: list[bytes] = []
    for pair in text[:-1].split(_SEPARATOR):
        name, separator, _ = pair.partition(b"\x01")
        if not separator or not name or name in names:
            return None
        names.append(name)
    return names


def _is_text(joined: bytes) -> bool:
    """True if the bytes are UTF-8 without NUL (a NUL would make a key of no topic, see `store.derived.index`)."""
    if b"\0" in joined:
        return False
    if not joined.isascii():
        try:
            joined.decode()
        except UnicodeDecodeError:
            return False
    return True


def _are_columns(pieces: list[bytes], names: list[bytes], count: int) -> bool:
    """True if the pieces are, message by message, a pair of each name in their order and an empty one."""
    width = len(names)
    if len(pieces) != count * (width + 1) or any(pieces[width :: width + 1]):
        return False
    # A piece contains no separator, so one mark for each piece means that each begins with it.
    return all(_column(pieces, place, width).count(_mark(name)) == count for place, name in enumerate(names))


def _column(pieces: list[bytes], place: int, width: int) -> bytes:
    return _SEPARATOR + _SEPARATOR.join(pieces[place :: width + 1])


def _mark(name: bytes) -> bytes:
    return b"\x02%b\x01" % name
