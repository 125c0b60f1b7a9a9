"""SQL92 property filters: an expression is compiled once, to closures, and evaluated on each message's property text.

The grammar, in RocketMQ's precedence (Apache's ``SelectorParser``)::

    or          = and { OR and }
    and         = equality { AND equality }
    equality    = comparison { "=" comparison | "<>" comparison | IS [NOT] NULL }
    comparison  = unary { (">" | ">=" | "<" | "<=") unary | [NOT] BETWEEN unary AND unary
                        | [NOT] IN "(" string { "," string } ")" | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string }
    unary       = "+" unary | "-" unary | NOT unary | primary
    primary     = string | number | TRUE | FALSE | NULL | name | "(" or ")"

NOT binds closer than a comparison does: ``NOT (a = 1)`` needs its parentheses. Keywords may have any case; names are
case-sensitive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from remoting.filters import sql_nodes as nodes
from remoting.filters.sql_nodes import Node, NodeError
from remoting.filters.sql_tokens import Sql92Error, Tokens
from remoting.filters.sql_values import IncomparableError

__all__ = ["SQL92", "PropertyFilter", "Sql92Error", "compile_sql92"]

SQL92 = "SQL92"
"""The expression type of these filters."""
DEPTH_MAX = 64
"""Deepest nesting of parentheses: low enough for the interpreter's stack."""

SHORT_CHARS_MAX = 1_024


class PropertyFilter:
    """A compiled expression.

    ``matches(properties)`` tells whether a message with this property text matches. It is an attribute with a function,
    not a method, which saves a call for each message. ``words`` measures its cost (see `store.matching`).
    """

    __slots__ = ("matches", "words")

    def __init__(self, matches: Callable[[str], bool], words: int) -> None:
        self.matches = matches
        self.words = words


def compile_sql92(expression: str) -> PropertyFilter:
    """Compile an expression. Raises Sql92Error, which names the problem and the column.

    >>> wanted = compile_sql92("region IN ('north', 'east') AND price BETWEEN 10 AND 20.5")
    >>> wanted.matches("region\\x01north\\x02price\\x0115\\x02"), wanted.matches("region\\x01north\\x02")
    (True, False)
    """
    return (_short if len(expression) <= SHORT_CHARS_MAX else _long)(expression)


def _compile(expression: str) -> PropertyFilter:
    parser = _Parser(expression)
    evaluate = parser.parse().evaluate

    def matches(properties: str) -> bool:
        try:
            return evaluate(properties) is True
        except IncomparableError:
            return False  # as Apache's broker, which logs an error for each such message

    return PropertyFilter(matches, parser.words)


# A filter takes some 150 bytes for each character: many short ones are kept, and few long ones.
_short = lru_cache(maxsize=512)(_compile)
_long = lru_cache(maxsize=8)(_compile)


class _Parser:
    """One expression on its way through the grammar."""

    def __init__(self, expression: str) -> None:
        self._tokens = Tokens(expression)
        self._depth = 0

    @property
    def words(self) -> int:
        """Number of tokens read."""
        return self._tokens.count

    def parse(self) -> Node:
        """The whole expression; text after its end is an error here, while Apache's parser ignores it."""
        root = self._at(1, nodes.as_boolean, self._or())
        if self._tokens.next.kind != "end":
            token = self._tokens.next
            raise Sql92Error(f"Expected AND, OR or the end, found {token}", token.column)
        return root

    @staticmethod
    def _at(column: int, make: Callable[..., Node], *arguments: object) -> Node:
        """Make a part; if that is not possible, raise Sql92Error with the column."""
        try:
            return make(*arguments)
        except NodeError as error:
            raise Sql92Error(str(error), column) from None

    def _or(self) -> Node:
        return self._chain("OR", self._and, nodes.any_of)

    def _and(self) -> Node:
        return self._chain("AND", self._equality, nodes.all_of)

    def _chain(self, word: str, part: Callable[[], Node], join: Callable[[Sequence[Node]], Node]) -> Node:
        """Parts separated by a word, as one part, so that a long row of them does not nest deeply."""
        column = self._tokens.next.column
        parts = [part()]
        while self._tokens.taken(word):
            parts[-1] = self._at(column, nodes.as_boolean, parts[-1])
            column = self._tokens.next.column
            parts.append(part())
        return parts[0] if len(parts) == 1 else self._at(column, join, parts)

    def _equality(self) -> Node:
        tokens = self._tokens
        left = self._comparison()
        while tokens.next.kind in ("=", "<>", "IS"):
            token = tokens.take()
            if token.kind == "IS":
                is_not = tokens.taken("NOT")
                tokens.need("NULL", "NULL")
                left = self._at(token.column, nodes.equal, left, nodes.constant(None), True)
            else:
                is_not = token.kind == "<>"
                left = self._at(token.column, nodes.equal, left, self._comparison())
            if is_not:
                left = self._at(token.column, nodes.negated, left)
        return left

    def _comparison(self) -> Node:
        tokens = self._tokens
        left = self._unary()
        while True:
            token = tokens.next
            if token.kind in nodes.ORDERINGS:
                tokens.take()
                left = self._at(token.column, nodes.ordered, left, self._unary(), token.kind)
                continue
            wanted = not tokens.taken("NOT")
            kind = tokens.next.kind
            if kind == "BETWEEN":
                left = self._between(left, wanted)
            elif kind == "IN":
                left = self._in(left, wanted)
            elif kind in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
                tokens.take()
                left = self._at(token.column, nodes.search, left, kind, self._string(), wanted)
            elif wanted:
                return left
            else:
                what = "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH"
                raise Sql92Error(f"Expected {what} after NOT, found {tokens.next}", tokens.next.column)

    def _between(self, value: Node, wanted: bool) -> Node:
        tokens = self._tokens
        column = tokens.take().column
        low = self._unary()
        tokens.need("AND", "AND between the bounds")
        return self._at(column, nodes.between if wanted else nodes.not_between, value, low, self._unary())

    def _in(self, value: Node, wanted: bool) -> Node:
        tokens = self._tokens
        column = tokens.take().column
        tokens.need("(", "a list of strings in parentheses")
        words = [self._string()]
        while tokens.taken(","):
            words.append(self._string())
        tokens.need(")", "a comma or the list's closing parenthesis")
        return self._at(column, nodes.is_in, value, words, wanted)

    def _unary(self) -> Node:
        tokens = self._tokens
        signs = []
        while tokens.next.kind in ("+", "-", "NOT"):
            signs.append(tokens.take())
        node = self._primary()
        for sign in reversed(signs):
            if sign.kind == "-":
                node = self._at(sign.column, nodes.negative, node)
            elif sign.kind == "NOT":
                node = self._at(sign.column, nodes.negated, node)
        return node

    def _primary(self) -> Node:
        token = self._tokens.take()
        match token.kind:
            case "string":
                return nodes.constant(_unquoted(token.text))
            case "decimal" | "double":
                return self._at(token.column, nodes.number, token.text)
            case "TRUE" | "FALSE":
                return nodes.constant(token.kind == "TRUE")
            case "NULL":
                return nodes.constant(None)
            case "name":
                return nodes.prop(token.text)
            case "(":
                self._depth += 1
                if self._depth > DEPTH_MAX:
                    raise Sql92Error(f"More than {DEPTH_MAX} parentheses inside each other", token.column)
                node = self._or()
                self._tokens.need(")", "AND, OR or a closing parenthesis")
                self._depth -= 1
                return node
        raise Sql92Error(f"Expected a property, a value or an opening parenthesis, found {token}", token.column)

    def _string(self) -> str:
        return _unquoted(self._tokens.need("string", "a string in single quotes").text)


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")
