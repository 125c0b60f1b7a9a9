"""``timewheel status``: the figures of all brokers of a cluster, or of all shards, and their sums."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import click

from broker.cli.common import account_option, namesrv_option, one_line_errors, say, secret_of, tls_options
from broker.cli.pending_tables import as_table
from timewheel_client import PendingClient
from timewheel_client.net.tls import Tls
from timewheel_client.values.times import format_span

__all__ = ["status_command", "status_rows"]

_HEAD = ("broker", "address", "up", "put/s", "got/s", "pending", "failed puts", "put today", "version")
_TIMEOUT_MS = 5_000


@click.command("status")
@namesrv_option
@account_option
@tls_options
@click.option("--json", "as_json", is_flag=True, help="Print all figures of each broker, as one JSON object.")
def status_command(namesrv: str, access_key: str | None, tls: Tls, as_json: bool) -> None:
    """Show the figures of all brokers that the name server knows, and their sums.

    put/s and got/s: messages a second over the last minute. pending: timed messages and those of delay levels. The exit
    status is 1 if a broker does not answer.
    """
    secret_key = secret_of(access_key)

    async def ask() -> dict[str, dict[str, str] | Exception]:
        async with PendingClient(
            namesrv, timeout_ms=_TIMEOUT_MS, tls=tls, access_key=access_key, secret_key=secret_key
        ) as client:
            return await client.figures()

    with one_line_errors():
        found = asyncio.run(ask())
        if not found:
            raise click.ClickException(f"no broker is registered with {namesrv}")
        if as_json:
            say(json.dumps({name: _document(figures) for name, figures in found.items()}))
        else:
            for line in as_table(status_rows(found, int(time.time() * 1000))).splitlines():
                say(line)
        silent = [name for name, figures in found.items() if isinstance(figures, Exception)]
        if silent:
            raise click.ClickException(f"these brokers gave no figures: {', '.join(silent)}")


def _document(figures: Mapping[str, str] | Exception) -> dict[str, Any]:
    return {"error": str(figures)} if isinstance(figures, Exception) else dict(figures)


def status_rows(found: Mapping[str, Mapping[str, str] | Exception], now_ms: int) -> list[tuple[str, ...]]:
    """The rows of the table: the head, one for each broker, and the sums if there are several brokers.

    >>> for row in status_rows({"b-0": {"putTps": "1 5.0 2", "timewheelPending": "3"}, "b-1": OSError("gone")}, 0)[1:]:
    ...     print(row[:6])
    ('b-0', '', '', '5', '0', '3')
    ('b-1', 'gone', '', '', '', '')
    ('together', '', '', '5', '0', '3')
    """
    rows: list[tuple[str, ...]] = [_HEAD]
    sums = [0.0] * 5
    for name, figures in found.items():
        if isinstance(figures, Exception):
            rows.append((name, str(figures), *[""] * (len(_HEAD) - 2)))
            continue
        counts = [
            _rate(figures.get("putTps", "")),
            _rate(figures.get("getTransferredTps", "")),
            _number(figures, "timewheelPending") + _number(figures, "levelsPending"),
            _number(figures, "timewheelFailed"),
            _number(figures, "msgPutTotalTodayNow") - _number(figures, "msgPutTotalTodayMorning"),
        ]
        sums = [total + count for total, count in zip(sums, counts, strict=True)]
        booted_ms = int(_number(figures, "bootTimestamp"))
        up = format_span(max(0, now_ms - booted_ms) // 1000 * 1000) if booted_ms else ""
        texts = (f"{count:,.0f}" for count in counts)
        rows.append((name, figures.get("address", ""), up, *texts, figures.get("brokerVersionDesc", "")))
    if len(found) > 1:
        rows.append(("together", "", "", *(f"{total:,.0f}" for total in sums), ""))
    return rows


def _rate(text: str) -> float:
    """The middle one of the rates over 10 s, a minute and ten minutes."""
    words = text.split()
    try:
        return float(words[1])
    except (IndexError, ValueError):
        return 0.0


def _number(figures: Mapping[str, str], name: str) -> float:
    try:
        return float(figures.get(name, "0"))
    except ValueError:
        return 0.0
