"""Many finished frames in one array. Only times and numbers are written into them.

A `Template` is one frame and the places in it that change. All frames of a template have the same length, so these
places form columns, and NumPy writes a column for hundreds of frames at once: about 0.2 µs a message, and one
``send`` of neighbouring frames needs no joining.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = [
    "BODY_MARK",
    "DELAY_MARK",
    "DUE_MARK",
    "ISO_MARK",
    "NUMBER_MARK",
    "OPAQUE_MARK",
    "Ring",
    "Template",
    "find_fields",
    "opaque_of",
]

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# Marks that a template's writer leaves where a value belongs; each is as long as the value.
DUE_MARK = b"1000000000000"  # the due time in epoch milliseconds, 13 digits
ISO_MARK = b"1000-01-01T00:00:00.000Z"  # the due time, RFC 3339
DELAY_MARK = b"0987654321"  # whole seconds until then, 10 digits
OPAQUE_MARK = b"1999999999"  # a request's own number: 1,000,000,000 and the last nine digits of its message's
NUMBER_MARK = b"FEEDFACEFEEDFACE"  # the number of the message, 16 hex digits
BODY_MARK = b"<DUE_us><NUMBER>"  # the same two as big-endian int64, in microseconds

_DIGITS = np.array([list(b"%04d" % n) for n in range(10_000)], np.uint8)
_HEX = np.array([list(b"%04X" % n) for n in range(65_536)], np.uint8)


@dataclasses.dataclass(slots=True)
class Template:
    """One frame of ``batch`` messages; message i's fields stand ``stride * i`` bytes behind those of the first."""

    data: bytes
    fields: list[tuple[bytes, int]]
    batch: int = 1
    stride: int = 0


def find_fields(data: bytes) -> list[tuple[bytes, int]]:
    """List (mark, offset) of each mark in a message's bytes."""
    found = []
    for mark in (DUE_MARK, ISO_MARK, DELAY_MARK, OPAQUE_MARK, NUMBER_MARK, BODY_MARK):
        at = data.find(mark)
        while at >= 0:
            found.append((mark, at))
            at = data.find(mark, at + 1)
    return found


class Ring:
    """``rows`` frames, made of templates of one shape in turn, given out in order and written anew once a lap.

    ``now_ms`` is the clock; due times are drawn from ``due_from_ms`` to ``due_to_ms`` after it, or after ``due_at_ms``
    if that is set. Each message has a number of its own, from ``first_number``.

    Raises ValueError.
    """

    def __init__(
        self,
        templates: list[Template],
        rows: int,
        now_ms: Callable[[], int],
        due_from_ms: int,
        due_to_ms: int,
        due_at_ms: int = 0,
        first_number: int = 0,
        seed: int = 1,
    ) -> None:
        template = templates[0]
        if any((len(t.data), t.fields) != (len(template.data), template.fields) for t in templates):
            raise ValueError("templates of one ring differ in length or in the places of their fields")
        self.size = len(template.data)
        self.batch = template.batch
        frames = [np.frombuffer(templates[row % len(templates)].data, np.uint8) for row in range(rows)]
        self.array: Bytes = np.stack(frames)
        self.view = self.array.data.cast("B")
        self.row_views = [self.view[row * self.size : (row + 1) * self.size] for row in range(rows)]
        self.number = first_number
        self._rows = rows
        self._at = rows
        self._fields = template.fields
        reach = self.size - template.stride * (self.batch - 1)
        self._columns: Bytes = np.lib.stride_tricks.as_strided(
            self.array, (rows, self.batch, reach), (self.size, template.stride, 1), writeable=True
        )
        self._whole_seconds = any(mark is DELAY_MARK for mark, _ in template.fields)
        self._now_ms = now_ms
        self._due = (due_from_ms, max(1, due_to_ms - due_from_ms), due_at_ms)
        self._random = np.random.default_rng(seed)

    def take(self, count: int) -> memoryview:
        """Give out at most so many frames, in one piece; fewer at the end of a lap."""
        if self._at >= self._rows:
            self.stamp(0, self._rows)
            self._at = 0
        count = min(count, self._rows - self._at)
        at = self._at * self.size
        self._at += count
        return self.view[at : at + count * self.size]

    def fresh(self, count: int) -> memoryview:
        """Give out at most so many frames, written just now: for due times close to the sending."""
        if self._at >= self._rows:
            self._at = 0
        count = min(count, self._rows - self._at)
        self.stamp(self._at, self._at + count)
        at = self._at * self.size
        self._at += count
        return self.view[at : at + count * self.size]

    def stamp(self, first: int, last: int) -> None:
        """Write new due times and numbers into rows ``first`` to ``last``."""
        shape = (last - first, self.batch)
        low, span, start = self._due
        now_ms = self._now_ms()
        dues: Int64s = (start or now_ms) + low + (self._random.random(shape) * span).astype(np.int64)
        if self._whole_seconds:
            dues = now_ms + (dues - now_ms) // 1000 * 1000
        numbers: Int64s = np.arange(self.number, self.number + shape[0] * shape[1]).reshape(shape)
        self.number += shape[0] * shape[1]
        rows = self._columns[first:last]
        for mark, at in self._fields:
            if mark is BODY_MARK:
                both = np.stack((dues * 1000, numbers), axis=-1).astype(">i8")
                rows[:, :, at : at + 16] = both.view(np.uint8).reshape(*shape, 16)
            elif mark is NUMBER_MARK:
                for part in range(4):
                    rows[:, :, at + 4 * part : at + 4 * part + 4] = _HEX[numbers >> 48 - 16 * part & 0xFFFF]
            elif mark is OPAQUE_MARK:
                _write_digits(rows[:, :1], at, opaque_of(numbers[:, :1]), 10)
            elif mark is DUE_MARK:
                _write_digits(rows, at, dues, 13)
            elif mark is DELAY_MARK:
                _write_digits(rows, at, (dues - now_ms) // 1000, 10)
            elif mark is ISO_MARK:
                texts = np.datetime_as_string(dues.astype("datetime64[ms]"), timezone="UTC").astype("S24")
                rows[:, :, at : at + 24] = texts.view(np.uint8).reshape(*shape, 24)


def opaque_of(numbers: Int64s) -> Int64s:
    """The opaques of requests whose (first) messages have these numbers."""
    return 1_000_000_000 + numbers % 1_000_000_000


def _write_digits(rows: Bytes, at: int, values: Int64s, width: int) -> None:
    """Write decimal digits of a fixed width into a column, four at a time from the right."""
    end = at + width
    while end > at:
        start = max(at, end - 4)
        rows[:, :, start:end] = _DIGITS[values % 10_000][:, :, 4 - (end - start) :]
        values = values // 10_000
        end = start
