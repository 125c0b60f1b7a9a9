"""Java's properties format, as `java.util.Properties.load` reads it: the format of an Apache ``broker.conf``.

The rules that surprise, each as Java has it:

=========================  ==========================================================================
encoding                   ISO-8859-1, other characters as ``\\uXXXX`` (a UTF-8 byte order mark is skipped)
comment                    a line whose first visible character is ``#`` or ``!``; never behind a value
separator                  the first unescaped ``=``, ``:`` or blank, with blanks around it
continuation               an odd number of backslashes at the end of a line; the next line's leading
                           blanks are dropped; a comment line is not continued
escapes                    ``\\t \\n \\r \\f \\uXXXX``; a backslash before anything else vanishes
a key twice                the last one counts
=========================  ==========================================================================

Source: java.util.Properties (Java SE 17), method ``load``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

__all__ = ["PropertiesError", "lines_of_keys", "parse_properties_file", "update_properties_file"]

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class PropertiesError(ValueError):
    """A file that Java's reader would refuse as well: a ``\\u`` without four hex digits."""


def parse_properties_file(data: bytes) -> dict[str, str]:
    r"""Parse the bytes of a properties file.

    >>> parse_properties_file(b"# where\nbrokerName = broker-a\nnamesrvAddr: 192.0.2.1:9876;\\\n  192.0.2.2:9876\n")
    {'brokerName': 'broker-a', 'namesrvAddr': '192.0.2.1:9876;192.0.2.2:9876'}
    """
    text = data.removeprefix(b"\xef\xbb\xbf").decode("iso-8859-1")
    return dict(_split(line) for line in _logical_lines(text))


def lines_of_keys(data: bytes) -> dict[str, int]:
    r"""The line number of each key of a file, from 1; for a key that occurs twice, of the line that counts.

    Raises PropertiesError, with the line, for a file that Java's reader would refuse.

    >>> lines_of_keys(b"# where\nbrokerName = a\nnamesrvAddr: 192.0.2.1:9876;\\\n  192.0.2.2:9876\nbrokerName=b\n")
    {'brokerName': 5, 'namesrvAddr': 3}
    """
    lines: dict[str, int] = {}
    number = 1
    for natural in _gather(_text(data)):
        try:
            key = _piece(natural)[0]
        except PropertiesError as error:
            raise PropertiesError(f"line {number}: {error}") from None
        if key is not None:
            lines[key] = number
        number += len(natural)
    return lines


def update_properties_file(data: bytes, changes: Mapping[str, str]) -> bytes:
    r"""Give keys of a file new values: the line of a key is replaced, a new key is added at the end.

    Comments, order and all other lines stay as they are. If a key occurs twice its last line is replaced, which is the
    one that counts for the reader. Raises PropertiesError for a file that Java's reader would refuse.

    >>> update_properties_file(b"# ours\nfileReservedTime = 48\nbrokerName=a\n", {"fileReservedTime": "72", "x": "1"})
    b'# ours\nfileReservedTime=72\nbrokerName=a\nx=1\n'
    """
    text = _text(data)
    pieces = [_piece(natural) for natural in _gather(text)]
    last = {key: at for at, (key, _) in enumerate(pieces) if key in changes}
    lines = [
        _escape(key, True) + "=" + _escape(changes[key], False) if key is not None and last.get(key) == at else piece
        for at, (key, piece) in enumerate(pieces)
    ]
    if lines and _ends_with_odd_backslashes(lines[-1]) and changes.keys() - last.keys():
        lines.append("")  # otherwise the added key would continue that line
    lines += [_escape(key, True) + "=" + _escape(value, False) for key, value in changes.items() if key not in last]
    return ("\n".join(lines) + "\n").encode("ascii" if text.isascii() else "iso-8859-1")


def _text(data: bytes) -> str:
    """A file's text with plain line ends."""
    return data.removeprefix(b"\xef\xbb\xbf").decode("iso-8859-1").replace("\r\n", "\n").replace("\r", "\n")


def _gather(text: str) -> Iterator[list[str]]:
    """Cut a file into its logical lines, each as the lines in which it is written."""
    pending: list[str] = []
    for natural in text.removesuffix("\n").split("\n") if text else []:
        line = natural.lstrip(_BLANKS)
        pending.append(natural)
        nothing = len(pending) == 1 and (not line or line[0] in "#!")
        if nothing or not _ends_with_odd_backslashes(natural):
            yield pending
            pending = []
    if pending:
        yield pending


def _piece(natural: list[str]) -> tuple[str | None, str]:
    """A logical line as written, with its key (None: a comment or blank line)."""
    text = "\n".join(natural)
    return next((_split(line)[0] for line in _logical_lines(text)), None), text


def _escape(text: str, key: bool) -> str:
    """Write a key or a value so that Java's reader reads it back."""
    out = []
    for at, char in enumerate(text):
        if char in "\t\n\r\f":
            out.append("\\" + "tnrf"["\t\n\r\f".index(char)])
        elif not " " <= char <= "~":
            units = char.encode("utf-16-be")
            out.extend(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
        elif char == "\\" or (key and char in "=: #!") or (char == " " and at == 0):
            out.append("\\" + char)
        else:
            out.append(char)
    return "".join(out)


def _logical_lines(text: str) -> Iterator[str]:
    """Join continued lines and leave out blank lines and comments."""
    pending: list[str] = []  # joined at the end: a body from the network may continue a line a million times
    for natural in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = natural.lstrip(_BLANKS)
        if not pending and (not line or line[0] in "#!"):
            continue
        if _ends_with_odd_backslashes(natural):
            pending.append(line[:-1])
            continue
        pending.append(line)
        whole = "".join(pending)
        pending.clear()
        if whole:
            yield whole
    if any(pending):
        yield "".join(pending)


def _ends_with_odd_backslashes(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Cut a logical line at its first unescaped separator."""
    at = 0
    while at < len(line) and line[at] not in "=:" + _BLANKS:
        at += 2 if line[at] == "\\" else 1
    key, rest = line[:at], line[at:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return _unescape(key), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\":
            out.append(char)
            continue
        escaped = text[at : at + 1]
        at += 1
        if escaped == "u":
            digits = text[at : at + 4]
            if len(digits) < 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise PropertiesError(f"\\u{digits} is not a character: four hex digits belong behind \\u")
            out.append(chr(int(digits, 16)))
            at += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    # Java's characters are UTF-16 units: what lies beyond 16 bits is escaped as two of them.
    return "".join(out).encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")
