"""Subscription expressions of type TAG: ``*``, or tags joined by ``||``.

A broker compares 32-bit hashes of tags, not their texts. Two tags may share a hash, so clients compare the text again.
A collision loses nothing; it only sends a message too many.
"""

from __future__ import annotations

from collections.abc import Iterable

from remoting.errors import ProtocolError
from remoting.messages.message import java_hash

__all__ = ["SUBSCRIBE_ALL", "TagFilter", "split_expression"]

SUBSCRIBE_ALL = "*"
TAGS_CHARS_MAX = 32_768
"""Characters of one expression; a hash of each is worked out. A message's own tag fits into 32,767 bytes."""


def split_expression(expression: str | None) -> list[str] | None:
    """Split ``a || b`` into its tags; None stands for all.

    Blank tags are dropped, as the reference does it. Raises ProtocolError for an expression of bars only, and for
    one of more than `TAGS_CHARS_MAX` characters.
    """
    if expression is None or expression in ("", SUBSCRIBE_ALL):
        return None
    if len(expression) > TAGS_CHARS_MAX:
        raise ProtocolError(
            f"subscription expression of {len(expression)} characters, at most {TAGS_CHARS_MAX} are taken"
        )
    parts = expression.split("||")
    if not any(parts):
        raise ProtocolError(f"subscription expression has no tag: {expression!r:.100}")
    return [tag for part in parts if (tag := part.strip())]


class TagFilter:
    """The tag codes of a subscription: ``codes`` is None for all of them.

    >>> wanted = TagFilter.from_expression("TagA || TagB")
    >>> wanted.matches(2598919)
    True
    """

    __slots__ = ("codes",)

    def __init__(self, codes: frozenset[int] | None) -> None:
        self.codes = codes

    @classmethod
    def from_expression(cls, expression: str | None) -> TagFilter:
        """Read an expression; raises ProtocolError as `split_expression` does."""
        tags = split_expression(expression)
        return ALL if tags is None else cls.from_tags(tags)

    @classmethod
    def from_tags(cls, tags: Iterable[str]) -> TagFilter:
        """Match these tags only."""
        return cls(frozenset(map(java_hash, tags)))

    def matches(self, code: int) -> bool:
        """True if a message with this tag code matches."""
        return self.codes is None or code in self.codes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TagFilter) and self.codes == other.codes

    def __hash__(self) -> int:
        return hash(self.codes)

    def __repr__(self) -> str:
        return f"TagFilter({self.codes!r})"


ALL = TagFilter(None)
