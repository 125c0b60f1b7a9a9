"""Our SQL92 evaluator against Apache's own, over random expressions and properties."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from remoting.filters.sql_filter import Sql92Error, compile_sql92
from tests.support.apache import VERSION, apache_jars
from tests.support.cache import cached, need_tools, run_tool
from tests.support.need import need

pytestmark = pytest.mark.apache

SOURCE = Path(__file__).parent / "clients" / "filter" / "FilterRules.java"

LITERALS = [
    *("5", "-5", "0", "3000000000", "5.5", "1e3", "'x'", "'5'", "'true'", "''", "TRUE", "FALSE", "NULL", "5L", "'5.5'"),
    *("2147483648", "10", ".5", "7."),
]
TEXTS = [
    *(
        "5",
        "-5",
        "5.5",
        "x",
        "true",
        "TRUE",
        "false",
        "3000000000",
        "+5",
        "005",
        "NaN",
        "Infinity",
        " 5 ",
        "5d",
        "0x10",
    ),
    *("0x1p3", "1e3", "-0", "0", "xx5", "9223372036854775807", "9223372036854775808", "5_0", "1f", "inf", "٥"),
    *("1.5.", ".", " ", "5L", "nan", "-NaN", "-Infinity", "1e999"),
]


class _Expressions:
    """Random expressions of the whole grammar, sensible or not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self) -> str:
        return self.random.choice(["a", "b", "c", "d", *LITERALS])

    def make(self, depth: int) -> str:
        pick = self.random.choice
        sign = pick(["=", "<>", ">", "<", ">=", "<="])
        maybe_not = pick(["", "NOT "])
        kind = self.random.randrange(14) if depth else 0
        if kind == 0:
            return pick([self.value(), f"{pick('abcd')} {sign} {self.value()}"])
        if kind in (1, 2, 3, 4):
            return ["({})", "NOT {}", "NOT ({})", "-{}"][kind - 1].format(self.make(depth - 1))
        if kind in (5, 6, 7, 8, 9):
            word = ["AND", "AND", "OR", "OR", sign][kind - 5]
            return f"{self.make(depth - 1)} {word} {self.make(depth - 1)}"
        if kind == 10:
            return f"{self.value()} {maybe_not}BETWEEN {self.value()} AND {self.value()}"
        if kind == 11:
            words = ", ".join(pick(LITERALS[6:10]) for _ in range(self.random.randrange(1, 7)))
            return f"{pick('abcd')} {maybe_not}IN ({words})"
        if kind == 12:
            return f"{self.make(depth - 1)} IS {maybe_not}NULL"
        return f"{self.value()} {maybe_not}{pick(['CONTAINS', 'startswith', 'EndsWith'])} {pick(LITERALS[6:10])}"

    def properties(self) -> str:
        names = [name for name in "abcd" if self.random.random() < 0.7]
        return "".join(f"{name}\x01{self.random.choice(TEXTS)}\x02" for name in names)


def _apache_says(lines: list[str], folder: Path) -> list[str]:
    need_tools("java", "javac")
    jars = need(apache_jars)

    def make(work: Path) -> None:
        run_tool(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", work / "classes", SOURCE], cwd=work)

    classes = cached("filter-rules", [SOURCE, VERSION], make) / "classes"
    command = ["java", f"-Duser.home={folder}", "-Xmx256m", "-cp", f"{classes}:{jars}/*", "FilterRules"]
    text = "\n".join(lines) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True, encoding="utf-8")
    return done.stdout.splitlines()


def test_the_same_expressions_are_taken_and_mean_the_same(tmp_path: Path) -> None:
    """The only difference: what stands behind a whole expression is refused here and overlooked there."""
    expressions = _Expressions(20)
    cases = [(expressions.make(3), [expressions.properties() for _ in range(4)]) for _ in range(8_000)]
    lines = [line for expression, texts in cases for line in (f"E{expression}", *(f"P{text}" for text in texts))]
    answers = iter(_apache_says(lines, tmp_path))
    compared = refused = 0
    for expression, texts in cases:
        taken, values = next(answers) == "ok", [next(answers) for _ in texts]
        try:
            wants = compile_sql92(expression)
        except Sql92Error as error:
            assert not taken or "Expected AND, OR or the end" in str(error), (expression, str(error))
            refused += 1
            continue
        assert taken, expression
        for text, value in zip(texts, values, strict=True):
            assert wants.matches(text) is (value == "true"), (expression, text, value)
            compared += 1
    assert compared > 8_000 and refused > 1_000
