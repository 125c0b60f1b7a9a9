"""The text of a place in a list over several brokers: where each of them that is not through goes on.

>>> text = cursor_of({"broker-a": "1700000000000-4000000000000005", "b/3": ""})
>>> text
'broker-a=1700000000000-4000000000000005;b%2F3='
>>> cursors_in(text, ["broker-a", "b/3", "c"])
{'broker-a': '1700000000000-4000000000000005', 'b/3': ''}
>>> cursors_in("", ["c"]), cursor_of({})
({'c': ''}, '')
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import quote, unquote

from timewheel_client.values.errors import ClientError

__all__ = ["cursor_of", "cursors_in"]


def cursor_of(cursors: Mapping[str, str]) -> str:
    """Write down the brokers that are not through, each with its own cursor; empty if there is none."""
    return ";".join(f"{quote(name, safe='')}={cursor}" for name, cursor in cursors.items())


def cursors_in(text: str, brokers: Collection[str]) -> dict[str, str]:
    """Read it; all brokers begin if the text is empty. Raises ClientError."""
    if not text:
        return dict.fromkeys(brokers, "")
    found: dict[str, str] = {}
    for part in text.split(";"):
        name, equals, cursor = part.partition("=")
        if not equals or (name := unquote(name)) in found:
            raise ClientError(f"{text!r:.80} is no cursor: pass on `next` of an earlier answer as it is")
        found[name] = cursor
    missing = [name for name in found if name not in brokers]
    if missing:
        raise ClientError(f"the cursor is of brokers that are not asked ({', '.join(missing):.200}): begin again")
    return found
