"""The parts of a SQL92 filter as closures, with Apache's rules for which kinds of values may be compared.

Each part becomes a `Node`: a function of a message's property text, and what is known of its value beforehand. Values
are str, int, float, bool, and None for unknown. The rules are those of Apache's ``ComparisonExpression``,
``LogicExpression`` and ``UnaryExpression``, surprises included: if a number is needed and the text is not one, the
whole filter does not match, not only the comparison.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial

from remoting.filters.sql_values import (
    INTEGER_BITS,
    LONG_BITS,
    IncomparableError,
    compare_doubles,
    java_double,
    java_integer,
)
from remoting.messages.properties import get_property

__all__ = [
    "ORDERINGS",
    "Kind",
    "Node",
    "NodeError",
    "all_of",
    "any_of",
    "as_boolean",
    "between",
    "constant",
    "equal",
    "is_in",
    "negated",
    "negative",
    "not_between",
    "number",
    "ordered",
    "prop",
    "search",
]

Value = str | int | float | bool | None
Evaluate = Callable[[str], Value]
DEPTH_MAX = 128
"""Deepest nesting of conditions: low enough for the interpreter's stack."""
_INTEGER_MAX, _LONG_MAX = (1 << 31) - 1, (1 << 63) - 1


class NodeError(ValueError):
    """Parts that cannot be combined; the text says why."""


class Kind(Enum):
    """The kind of a part's value, known before there is a message; each may also be None."""

    PROPERTY = "a property"
    STRING = "a string"
    INTEGER = "an Integer"
    LONG = "a Long"
    DOUBLE = "a Double"
    BOOLEAN = "a condition"
    NOTHING = "never anything"


class Node:
    """One part: ``evaluate`` for a property text, the ``kind`` of its value, ``literal`` if it is a constant.

    ``parts`` are the nodes of which it is made. Raises NodeError if they are nested too deeply.
    """

    __slots__ = ("depth", "evaluate", "kind", "literal", "name", "value")

    def __init__(
        self,
        kind: Kind,
        evaluate: Evaluate,
        *parts: Node,
        literal: bool = False,
        value: Value = None,
        name: str = "",
    ) -> None:
        self.kind = kind
        self.evaluate = evaluate
        self.literal = literal
        self.value = value
        self.name = name
        self.depth: int = 1 + max((part.depth for part in parts), default=0)
        if self.depth > DEPTH_MAX:
            raise NodeError(f"More than {DEPTH_MAX} conditions inside each other")

    def __str__(self) -> str:
        if self.kind is Kind.PROPERTY:
            return self.name
        if not self.literal:
            return "a condition" if self.kind is Kind.BOOLEAN else "a negative"
        if self.value is None:
            return "NULL"
        return str(self.value).upper() if isinstance(self.value, bool) else f"{self.value!r:.100}"


# ------------------------------------------------------------------------------------------------ leaves


def prop(name: str) -> Node:
    """A property of the message."""
    return Node(Kind.PROPERTY, lambda text: get_property(text, name), name=name)


def constant(value: str | bool | None) -> Node:
    """A string, TRUE, FALSE or NULL."""
    kind = Kind.STRING if isinstance(value, str) else Kind.BOOLEAN
    return Node(kind, lambda _: value, literal=True, value=value)


def number(text: str) -> Node:
    """A number as it is written. Raises NodeError if Java would not read it as one."""
    if text.strip("0123456789"):
        if text[-1] not in "lL":
            double = java_double(text)
            if double == float("inf"):
                raise NodeError(f"{text:.100} is greater than 1.7976931348623157E308")
            return Node(Kind.DOUBLE, lambda _: double, literal=True, value=double)
        text = text[:-1]
    if len(text) > 1 and text[0] == "0":
        raise NodeError(f"a whole number does not begin with 0: {text:.100}")
    if len(text) > 19 or int(text) > _LONG_MAX:
        raise NodeError(f"{text:.100} is greater than {_LONG_MAX}")
    value = int(text)
    kind = Kind.INTEGER if value <= _INTEGER_MAX else Kind.LONG
    return Node(kind, lambda _: value, literal=True, value=value)


# ------------------------------------------------------------------------------------------------ conditions


def as_boolean(node: Node) -> Node:
    """Use a part as a condition; a property alone is never true. Raises NodeError for other values."""
    if node.kind is Kind.BOOLEAN:
        return node
    if node.kind is Kind.PROPERTY:
        evaluate = node.evaluate
        return Node(Kind.BOOLEAN, lambda text: None if evaluate(text) is None else False, node)
    raise NodeError(f"Expression will not result in a boolean value: {node}")


def all_of(parts: Sequence[Node]) -> Node:
    """AND: False if one is False, else unknown if one is unknown."""
    evaluates = [as_boolean(part).evaluate for part in parts]

    def evaluate(text: str) -> Value:
        result: Value = True
        for each in evaluates:
            value = each(text)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return Node(Kind.BOOLEAN, evaluate, *parts)


def any_of(parts: Sequence[Node]) -> Node:
    """OR: True if one is True, else unknown if one is unknown."""
    evaluates = [as_boolean(part).evaluate for part in parts]

    def evaluate(text: str) -> Value:
        result: Value = False
        for each in evaluates:
            value = each(text)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return Node(Kind.BOOLEAN, evaluate, *parts)


def negated(node: Node) -> Node:
    """NOT: unknown stays unknown."""
    evaluate = as_boolean(node).evaluate

    def evaluate_not(text: str) -> Value:
        value = evaluate(text)
        return None if value is None else not value

    return Node(Kind.BOOLEAN, evaluate_not, node)


def negative(node: Node) -> Node:
    """A minus sign: the result for anything but a number is unknown."""
    evaluate = node.evaluate
    if node.kind not in (Kind.INTEGER, Kind.LONG, Kind.DOUBLE):

        def evaluate_nothing(text: str) -> Value:
            evaluate(text)  # for its errors: a comparison in there that cannot be made ends the whole filter
            return None

        return Node(Kind.NOTHING, evaluate_nothing, node)
    value = evaluate("")
    assert isinstance(value, int | float)
    minus = -value
    return Node(node.kind, lambda _: minus)


# ------------------------------------------------------------------------------------------------ comparisons

_INTEGERS = {Kind.INTEGER: INTEGER_BITS, Kind.LONG: LONG_BITS}
_TEXTS = (Kind.PROPERTY, Kind.STRING)


def _reader(kind: Kind, other: Kind) -> Callable[..., Value]:
    """The conversion that makes a value of one kind comparable with a value of another kind."""
    if kind in _TEXTS:
        if other in _INTEGERS:
            return partial(java_integer, bits=_INTEGERS[other])
        if other is Kind.DOUBLE:
            return java_double
        if other is Kind.BOOLEAN:
            return lambda value: str(value).lower() == "true"
    elif kind in _INTEGERS and other is Kind.DOUBLE:
        return float
    return lambda value: value


def _comparer(left: Kind, right: Kind) -> Callable[..., int]:
    """Compare two values of these kinds, neither of them unknown: -1, 0 or 1; may raise IncomparableError."""
    if left is Kind.BOOLEAN and right in _TEXTS:
        return _refuse  # as Apache's broker, which means to convert the text and converts the condition
    if (left is Kind.BOOLEAN) != (right is Kind.BOOLEAN) and right not in _TEXTS and left not in _TEXTS:
        return lambda _left, _right: -1
    read_left, read_right = _reader(left, right), _reader(right, left)
    if Kind.DOUBLE in (left, right):
        return lambda a, b: compare_doubles(read_left(a), read_right(b))  # type: ignore[arg-type]

    def compare(a: Value, b: Value) -> int:
        x, y = read_left(a), read_right(b)
        return (x > y) - (x < y)  # type: ignore[operator]

    return compare


def _refuse(left: Value, right: Value) -> int:
    raise IncomparableError(f"{left!r:.100} with {right!r:.100}")


def equal(left: Node, right: Node, null: bool = False) -> Node:
    """``=``, or with ``null`` IS NULL. Known and unknown: unknown if the left is, else False. Raises NodeError."""
    if not null:
        for node in (left, right):
            if node.literal and node.value is None:
                raise NodeError(f"'{node}' cannot be compared")
        if left.literal and right.literal and left.kind is Kind.BOOLEAN and right.kind is not Kind.BOOLEAN:
            raise NodeError(f"'{left}' cannot be compared with '{right}'")
    compare = _comparer(left.kind, right.kind)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(text: str) -> Value:
        a, b = evaluate_left(text), evaluate_right(text)
        if a is None:
            return True if b is None else None
        return False if b is None else compare(a, b) == 0

    return Node(Kind.BOOLEAN, evaluate, left, right)


ORDERINGS: dict[str, Callable[[int, int], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def ordered(left: Node, right: Node, sign: str) -> Node:
    """``>``, ``>=``, ``<`` or ``<=``: numbers, and properties taken for numbers. Raises NodeError for the rest."""
    for node in (left, right):
        if node.kind is Kind.BOOLEAN or (node.literal and node.kind is Kind.STRING):
            raise NodeError(f"Value '{node}' cannot be compared with {sign}")
    texts = left.kind is Kind.PROPERTY and right.kind is Kind.PROPERTY
    compare: Callable[..., int] = _compare_texts if texts else _comparer(left.kind, right.kind)
    test = ORDERINGS[sign]
    evaluate_left, evaluate_right = left.evaluate, right.evaluate

    def evaluate(text: str) -> Value:
        a = evaluate_left(text)
        if a is None:
            return None
        b = evaluate_right(text)
        return None if b is None else test(compare(a, b), 0)

    return Node(Kind.BOOLEAN, evaluate, left, right)


def _compare_texts(left: str, right: str) -> int:
    return compare_doubles(java_double(left), java_double(right))


def between(value: Node, low: Node, high: Node) -> Node:
    """BETWEEN: bounds included; raises NodeError, also for bounds the wrong way round."""
    if low.literal and high.literal:
        if low.value is None or high.value is None:
            raise NodeError("Illegal values of between, values can not be null!")
        try:
            wrong = _comparer(high.kind, low.kind)(high.value, low.value) < 0
        except IncomparableError as error:
            raise NodeError(f"Illegal values of between: {error}") from error
        if wrong:
            raise NodeError(
                f"Illegal values of between, left value({low}) must less than or equal to right value({high})"
            )
    return all_of((ordered(value, low, ">="), ordered(value, high, "<=")))


def not_between(value: Node, low: Node, high: Node) -> Node:
    """NOT BETWEEN; raises NodeError."""
    return any_of((ordered(value, low, "<"), ordered(value, high, ">")))


def is_in(node: Node, words: Sequence[str], wanted: bool) -> Node:
    """IN and NOT IN a list of strings; unknown without the property. Raises NodeError for what is no property."""
    if node.kind is not Kind.PROPERTY:
        raise NodeError(f"Expected a property for In expression, got: {node}")
    evaluate_property = node.evaluate
    known = frozenset(words)

    def evaluate(text: str) -> Value:
        value = evaluate_property(text)
        return None if value is None else (value in known) is wanted

    return Node(Kind.BOOLEAN, evaluate)


_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def search(node: Node, how: str, part: str, wanted: bool) -> Node:
    """CONTAINS, STARTSWITH, ENDSWITH and their NOTs: False, never unknown, for what is no text or an empty part."""
    if not part:
        return Node(Kind.BOOLEAN, lambda _: False)
    test, evaluate_text = _SEARCHES[how], node.evaluate

    def evaluate(text: str) -> Value:
        value = evaluate_text(text)
        return isinstance(value, str) and test(value, part) is wanted

    return Node(Kind.BOOLEAN, evaluate, node)
