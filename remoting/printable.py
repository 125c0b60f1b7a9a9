"""Makes peers' text safe to print: one line, without control characters for a terminal.

A remark, a topic, a message's body or a setting may contain sequences that move the cursor, change colours, rename the
window or turn the direction of writing, and a line end makes two log lines of one. All text of peers goes through
`printable` on its way to a log or a terminal.
"""

from __future__ import annotations

import re

__all__ = ["printable"]

_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_OBEYED_IN_LINES = re.compile(_OBEYED.pattern.replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, lines: bool = False) -> str:
    r"""Write control characters, marks of writing direction and lone surrogates as escapes.

    ``lines`` keeps line ends.

    >>> printable("a\x1b[31mred\nb\u202e")
    'a\\x1b[31mred\\nb\\u202e'
    >>> printable("Grüße, 你好")
    'Grüße, 你好'
    """
    pattern = _OBEYED_IN_LINES if lines else _OBEYED
    return pattern.sub(_escape, text) if pattern.search(text) else text


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    return _SHORT.get(char) or (f"\\x{ord(char):02x}" if char < "\xa0" else f"\\u{ord(char):04x}")
