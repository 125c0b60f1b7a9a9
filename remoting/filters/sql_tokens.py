"""The words of a SQL92 filter: names, numbers, strings, signs; read one at a time, in time linear in the text."""

from __future__ import annotations

import re

from remoting.errors import ProtocolError

__all__ = ["KEYWORDS", "Sql92Error", "Token", "Tokens"]

EXPRESSION_CHARS_MAX = 65_536
WORDS_MAX = 1_024
"""Words of one expression: compiling them takes 5 to 10 µs each, and the network loop waits for it."""
KEYWORDS = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)

_BLOCK = r"/\*[^*]*\*+(?:[^*/][^*]*\*+)*/"
_SKIPPED = re.compile(rf"(?:[ \t\n\r\f]|--[^\n\r]*[\n\r]|{_BLOCK})+")
# A comment to the end of a line needs that end. Looking for one at every minus of the last line would be quadratic.
_SKIPPED_IN_LAST_LINE = re.compile(rf"(?:[ \t\f]|{_BLOCK})+")
_WORD = re.compile(
    r"(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<string>'(?:[^']|'')*')"
    r"|(?P<double>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<decimal>[0-9]+[lL]?)"
    r"|(?P<sign><>|<=|>=|[=<>(),+-])"
)


class Sql92Error(ProtocolError):
    """An expression that cannot be read; the text names what is wrong and the column where it is.

    It begins as Apache's message does (``Invalid MessageSelector.``), which says no more than that.
    """

    def __init__(self, problem: str, column: int) -> None:
        super().__init__(f"Invalid MessageSelector. {problem} at column {column}")
        self.column = column


class Token:
    """One word: ``kind`` is name, string, double, decimal, end, a keyword in capitals or a sign; ``column`` from 1."""

    __slots__ = ("column", "kind", "text")

    def __init__(self, kind: str, text: str, column: int) -> None:
        self.kind = kind
        self.text = text
        self.column = column

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"{self.text!r:.100}"


class Tokens:
    """Reads an expression word by word, with one word looked at in advance.

    Raises Sql92Error for a text that is too long, and at a place where no word begins.
    """

    def __init__(self, expression: str) -> None:
        if len(expression) > EXPRESSION_CHARS_MAX:
            problem = f"The expression has {len(expression)} characters, at most {EXPRESSION_CHARS_MAX} are taken, cut"
            raise Sql92Error(problem, EXPRESSION_CHARS_MAX)
        self._expression = expression
        self._last_line = max(expression.rfind("\n"), expression.rfind("\r")) + 1
        self._at = 0
        self.count = 0
        self.next = self._read()

    def take(self) -> Token:
        """Hand out the next word."""
        token = self.next
        if token.kind != "end":
            self.next = self._read()
        return token

    def taken(self, kind: str) -> bool:
        """Step over the next word if it is of this kind."""
        if self.next.kind != kind:
            return False
        self.take()
        return True

    def need(self, kind: str, what: str) -> Token:
        """Hand out the next word, which must be of this kind. Raises Sql92Error if the next token is another one."""
        if self.next.kind != kind:
            raise Sql92Error(f"Expected {what}, found {self.next}", self.next.column)
        return self.take()

    def _read(self) -> Token:
        expression = self._expression
        pattern = _SKIPPED_IN_LAST_LINE if self._at >= self._last_line else _SKIPPED
        skipped = pattern.match(expression, self._at)
        at = skipped.end() if skipped else self._at
        if at == len(expression):
            return Token("end", "", at + 1)
        found = _WORD.match(expression, at)
        if found is None:
            problem = "A string without its closing quote" if expression[at] == "'" else f"Found {expression[at]!r}"
            raise Sql92Error(problem, at + 1)
        self._at = found.end()
        self.count += 1
        if self.count > WORDS_MAX:
            raise Sql92Error(f"The expression has more than {WORDS_MAX} words, it goes on", at + 1)
        kind, text = str(found.lastgroup), found[0]
        if kind == "sign":
            kind = text
        elif kind == "name" and text.upper() in KEYWORDS:
            kind = text.upper()
        return Token(kind, text, at + 1)
