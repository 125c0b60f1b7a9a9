"""The keys by which a message is found: the hash of its tag, and the words of its keys."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from remoting.messages.properties import KEYS, UNIQ_KEY, find_property, get_property

__all__ = ["java_hash", "message_keys", "tag_hash", "tags_code"]


def java_hash(text: str) -> int:
    """Compute Java's String.hashCode: 31 * h + UTF-16 unit, signed 32 bit."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


_SHORT_CHARS_MAX: Final = 256
_TAGS: Final = "TAGS\x01"
_short_hash: Final = lru_cache(maxsize=4096)(java_hash)


def tag_hash(tag: str) -> int:
    """Compute the tags code of a tag: `java_hash`, with a cache for frequent tags.

    Long tags are not cached: the cache would keep 4,096 of 32 KiB.
    """
    return _short_hash(tag) if len(tag) <= _SHORT_CHARS_MAX else java_hash(tag)


def tags_code(properties: str) -> int:
    """Compute the ConsumeQueue's tag code from a property text: 0 without TAGS, else Java's hash of the tag."""
    tag = find_property(properties, _TAGS)
    return 0 if tag is None else tag_hash(tag)


def message_keys(properties: str) -> tuple[str, ...]:
    """List the keys of a message: UNIQ_KEY first, then each word of KEYS."""
    unique = get_property(properties, UNIQ_KEY)
    keys = get_property(properties, KEYS)
    if keys is None:
        return () if unique is None else (unique,)
    words = keys.split(" ") if " " in keys else (keys,)
    if "" in words:
        words = [word for word in words if word]
    return tuple(words) if unique is None else (unique, *words)
