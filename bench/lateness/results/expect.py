"""The expectations of ``--expect``: a figure of the result, a comparison, a limit.

========================================  =======================================================================
``p50`` ``p90`` ``p99`` ``p99.9``         broker lateness; the limit is a time: ``10ms``, ``2s``, ``1m``, or bare
``p99.99`` ``max``                        milliseconds
``e2e.p99`` …                             the same of end-to-end lateness
``lost`` ``overdue`` ``repeated`` …       a count of `COUNTS`, or ``e2e.early`` and so on; the limit is a number
``within.10`` …                           share delivered within 1, 10, 100, 1000 ms; the limit is a share, or ``99.9%``
========================================  =======================================================================

An expectation of a figure that does not exist (a percentile of no messages) fails.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.lateness.results.result import COUNTS, QUANTILES, WITHIN_MS

__all__ = ["Expectation", "ExpectationError", "parse_expectation"]

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_PATTERN = re.compile(r"\s*([\w.]+)\s*(<=|>=|==|=|<|>)\s*(-?\d+(?:\.\d+)?)\s*(ms|s|m|h|%)?\s*")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_TIMES = (*QUANTILES, "max")
_E2E_COUNTS = ("received", "repeated", "early")


class ExpectationError(ValueError):
    """A text is no expectation; the error shows an example."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation; ``path`` leads to its figure in the summary's total."""

    text: str
    path: tuple[str, ...]
    compare: str
    limit: float

    def judge(self, total: dict[str, Any]) -> dict[str, Any]:
        """Compare it with a result: ``{text, value, at_least, holds}``; ``at_least``: the value is a lower bound."""
        value: Any = total
        bounds: Any = ()
        for name in self.path:
            bounds = value.get("at_least", bounds) if isinstance(value, dict) else ()
            value = value.get(name) if isinstance(value, dict) else None
        holds = value is not None and _COMPARE[self.compare](value, self.limit)
        return {"text": self.text, "value": value, "at_least": self.path[-1] in bounds, "holds": holds}


def parse_expectation(text: str) -> Expectation:
    """Read one expectation. Raises ExpectationError for any other text.

    >>> parse_expectation("p99 <= 10ms").judge({"percentiles": {"p99": 12}})
    {'text': 'p99 <= 10ms', 'value': 12, 'at_least': False, 'holds': False}
    """
    found = _PATTERN.fullmatch(text)
    if not found:
        raise ExpectationError(f"{text!r}: a figure, a comparison and a limit are expected, as in 'p99 <= 10ms'")
    name, compare, number, unit = found.groups()
    prefix: tuple[str, ...] = ()
    figure = name
    if name.startswith("e2e."):
        prefix, figure = ("end_to_end",), name.removeprefix("e2e.")
    kind, path = _path(figure, _E2E_COUNTS if prefix else COUNTS)
    if not path:
        known = ", ".join((*_TIMES, *COUNTS, *(f"within.{limit}" for limit in WITHIN_MS)))
        raise ExpectationError(
            f"{text!r}: {name} is no figure; there are {known}, and with e2e. before those of consumers"
        )
    limit = float(number)
    if not math.isfinite(limit):
        raise ExpectationError(f"{text!r:.60}…: the limit is too large")
    if kind == "time":
        if unit == "%":
            raise ExpectationError(f"{text!r}: a time is expected, as in 10ms or 2s")
        limit *= _UNITS_MS[unit or "ms"]
    elif kind == "share":
        if unit not in (None, "%"):
            raise ExpectationError(f"{text!r}: a share is expected, as in 0.999 or 99.9%")
        limit = limit / 100 if unit else limit
        if not 0 <= limit <= 1:
            raise ExpectationError(f"{text!r}: a share is from 0 to 1, or from 0% to 100%")
    elif unit:
        raise ExpectationError(f"{text!r}: a number without unit is expected")
    return Expectation(text.strip(), (*prefix, *path), compare, limit)


def _path(figure: str, numbers: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    if figure in _TIMES:
        return "time", ("percentiles", figure)
    if figure in numbers:
        return "count", (figure,)
    head, _, limit = figure.partition(".")
    if head == "within" and limit in map(str, WITHIN_MS):
        return "share", ("within", limit)
    return "", ()
