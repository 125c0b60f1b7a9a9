"""A table of fields: what an offset, a size, a struct and a NumPy type are made from."""

from __future__ import annotations

from struct import Struct, calcsize
from typing import Final, NamedTuple

__all__ = ["INT", "LITTLE_INT", "LITTLE_LONG", "LONG", "SHORT", "UNSIGNED_SHORT", "Field", "Table"]


class Field(NamedTuple):
    """A field: ``code`` is its type as `struct` writes it, without the byte order."""

    name: str
    at: int
    code: str

    @property
    def size(self) -> int:
        """Bytes of the field."""
        return calcsize("=" + self.code)


class Table:
    """Fields one behind the other, from 0 on; ``order`` is ``>`` (big-endian) or ``<``.

    Raises ValueError if a field does not begin where the one before it ends, or if the sizes do not add up to ``size``.
    """

    __slots__ = ("fields", "order", "size")

    def __init__(self, order: str, size: int, *fields: tuple[str, int, str]) -> None:
        self.order = order
        self.size = size
        self.fields = [Field(*field) for field in fields]
        end = 0
        for field in self.fields:
            if field.at != end:
                raise ValueError(f"{field.name} stands at {field.at}, the field before it ends at {end}")
            end += field.size
        if end != size:
            raise ValueError(f"the fields end at {end}, the whole has {size} bytes")

    def field(self, name: str) -> Field:
        """The field of this name; raises KeyError."""
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(name)

    def at(self, name: str) -> int:
        """Position of a field, in bytes. Raises KeyError if there is no such field."""
        return self.field(name).at

    def codes(self, first: str = "", last: str = "") -> str:
        """The types of the fields from ``first`` to ``last``, both included; raises KeyError."""
        fields = self.fields
        begin = fields.index(self.field(first)) if first else 0
        end = fields.index(self.field(last)) + 1 if last else len(fields)
        return "".join([field.code for field in fields[begin:end]])

    def struct(self, first: str = "", last: str = "", order: str = "") -> Struct:
        """The fields from ``first`` to ``last``, both included; in another byte order, if one is given. KeyError."""
        return Struct((order or self.order) + self.codes(first, last))

    def picked(self, *names: str) -> Struct:
        """Some of the fields (in their order) as a struct that begins at 0 and skips the others; raises KeyError."""
        parts, end = [self.order], 0
        for name in names:
            field = self.field(name)
            if field.at > end:
                parts.append(f"{field.at - end}x")
            parts.append(field.code)
            end = field.at + field.size
        return Struct("".join(parts))

    def columns(self, order: str = "") -> list[tuple[str, str]]:
        """The fields as NumPy's ``dtype`` takes them; in another byte order, if one is given."""
        return [(field.name, (order or self.order) + _numpy(field)) for field in self.fields]


def _numpy(field: Field) -> str:
    if field.code.endswith("s"):
        return f"V{field.size}"
    return f"{'i' if field.code.islower() else 'u'}{field.size}"


# Single numbers, big-endian but for the last two.
SHORT: Final = Struct(">h")
UNSIGNED_SHORT: Final = Struct(">H")
INT: Final = Struct(">i")
LONG: Final = Struct(">q")
LITTLE_INT: Final = Struct("<I")
LITTLE_LONG: Final = Struct("<Q")
