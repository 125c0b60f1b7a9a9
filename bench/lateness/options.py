"""The options of ``timewheel lateness``: their types, examples for the help, and the words of the command line."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import click

from bench.lateness.logs.storage import without_login
from bench.lateness.results.expect import Expectation, ExpectationError, parse_expectation
from bench.lateness.results.result import GROUPS
from bench.lateness.results.target import Target, parse_target
from remoting.printable import printable
from timewheel_client.values.times import parse_instant

__all__ = ["EXAMPLES", "WORDS", "ExpectType", "InstantType", "TablesType", "TargetType", "Words"]

_TABLES = {**{name: name for name in GROUPS}, "kind": "topic", "level": "topic"}
WORDS = "bench.lateness.words"
"""The key under which the context keeps the words of the command line."""

EXAMPLES = """\b
Examples:
  timewheel lateness /var/lib/broker/store --out report
  timewheel lateness STORE --out report --target '99.9% within 10ms' --expect 'lost == 0'
  timewheel lateness ours/store apache/store --name ours --name apache --out report
  timewheel lateness STORE --out today --since 2026-11-23T00:00Z --received seen.jsonl
  timewheel lateness STORE --out today --baseline yesterday
  timewheel lateness STORE --out report --follow --refresh 10
\b
Each night, reading only what is new:
  timewheel lateness STORE --out report --state /var/lib/lateness/broker-a
\b
From S3, from HDFS (by the name node's HTTP port), on a cluster:
  timewheel lateness s3://logs/broker-a --out report --storage '{"key": "…", "secret": "…"}'
  timewheel lateness webhdfs://namenode:9870/logs/broker-a --out report
  timewheel lateness s3://logs/broker-a --out report --master spark://HOST:7077 --executor-memory 8g --executor-cores 4
"""


class Words(click.Command):
    """A command that remembers the words of its command line, because the result shows them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words, then parse them. Raises UsageError for a word that is empty or not UTF-8."""
        ctx.meta[WORDS] = list(args)
        for before, word in pairwise(["", *args]):
            name, equals, value = word.partition("=")
            if not word or (equals and not value and name.startswith("--")):
                self._expects_a_value(ctx, before if not word else name)
            try:
                word.encode()
            except UnicodeEncodeError:
                text = f"{printable(without_login(word))} is no UTF-8, which a result consists of"
                raise click.UsageError(text, ctx) from None
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(without_login(error.format_message()), ctx) from None

    def _expects_a_value(self, ctx: click.Context, name: str) -> None:
        if name == "--storage":  # an empty value means no options
            return
        raise click.UsageError(
            f"{name} '': a value is expected" if name[:1] == "-" else "SOURCE '': a path is expected", ctx
        )


class ExpectType(click.ParamType[Any]):
    """``--expect``: a figure and its limit."""

    name = "FIGURE<=LIMIT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Expectation:
        """Read an expectation. Raises BadParameter for any other text."""
        if isinstance(value, Expectation):
            return value
        try:
            return parse_expectation(str(value))
        except ExpectationError as error:
            self.fail(str(error), param, ctx)


class TargetType(click.ParamType[Any]):
    """``--target``: a share of the messages and a lateness."""

    name = "SHARE within TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        """Read a target. Raises BadParameter for any other text."""
        if isinstance(value, Target):
            return value
        try:
            return parse_target(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class InstantType(click.ParamType[Any]):
    """A moment, as ``timewheel send --at`` takes it."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read a moment. Raises BadParameter for any other text."""
        if isinstance(value, int):
            return value
        try:
            return parse_instant(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class TablesType(click.ParamType[Any]):
    """``--by``: names of groupings."""

    name = "NAME,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Read names of groupings. Raises BadParameter for any other text."""
        if isinstance(value, tuple):
            return value
        names = [name.strip() for name in str(value).split(",") if name.strip()]
        wrong = [name for name in names if name not in _TABLES]
        if not names:
            self.fail(f"{value!r} names no grouping; there are {', '.join(_TABLES)}", param, ctx)
        if wrong:
            self.fail(f"no grouping {', '.join(wrong)}; there are {', '.join(_TABLES)}", param, ctx)
        return tuple(_TABLES[name] for name in names)
