"""Tables and bars for ``timewheel pending``: plain text, as wide as its content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from remoting.printable import printable
from timewheel_client import ChangeResult, MatchingResult, OutlookResult, TopicWaiting, WaitingMessage
from timewheel_client.values.times import format_instant, format_span

__all__ = ["as_table", "bars_of", "bulk_lines", "remark_lines", "result_rows", "topic_rows", "waiting_rows"]

CELL_MAX = 60
BAR = 50
RESULTS_SHOWN = 100


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as aligned columns. The first row is the head; only cells of the last column are never shortened."""
    cells = [[*(_cell(cell) for cell in row[:-1]), printable(row[-1])] for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)


def _cell(text: str) -> str:
    text = printable(text)
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def waiting_rows(messages: Iterable[WaitingMessage], now_ms: int) -> list[tuple[str, ...]]:
    """Rows of a listing."""
    return [
        ("id", "topic", "due", "in", "tag", "key", "bytes", "version", "broker"),
        *(
            (
                message.id,
                message.topic,
                format_instant(message.due_ms),
                _until(message.due_ms, now_ms) + (" (failed)" if message.failed else ""),
                message.tag,
                message.key,
                str(message.size),
                str(message.version),
                message.broker,
            )
            for message in messages
        ),
    ]


def topic_rows(found: Iterable[TopicWaiting]) -> list[tuple[str, ...]]:
    """Rows of the pending messages by topic."""
    return [
        ("pending", "bytes", "first due", "last due", "topic"),
        *(
            (
                str(row.count),
                str(row.bytes),
                format_instant(row.first_due_ms),
                format_instant(row.last_due_ms),
                row.topic,
            )
            for row in found
        ),
    ]


def result_rows(results: Iterable[ChangeResult], now_ms: int) -> list[tuple[str, ...]]:
    """Rows of the verdicts on changes."""
    return [
        ("verdict", "id", "due", "in", "version", "when", "where", "detail"),
        *(
            (
                result.verdict,
                result.id,
                format_instant(result.due_ms) if result.due_ms else "",
                _until(result.due_ms, now_ms) if result.due_ms else "",
                str(result.version) if result.id else "",
                format_instant(result.when_ms) if result.when_ms else "",
                result.where,
                result.detail,
            )
            for result in results
        ),
    ]


def bulk_lines(found: MatchingResult, now_ms: int, go_on: str = "") -> list[str]:
    """Lines of a bulk change: the first results, their sums, what was passed over, how to go on (or the cursor)."""
    lines = as_table(result_rows(found.answers[:RESULTS_SHOWN], now_ms)).split("\n") if found.answers else []
    total = sum(found.verdicts.values())
    if len(found.answers) > RESULTS_SHOWN:
        lines.append(f"… and {total - RESULTS_SHOWN} more")
    if found.dry_run:
        lines.append(f"{total} messages would be changed; none was. To change them, add --yes")
    else:
        told = ", ".join(f"{count} {verdict}" for verdict, count in found.verdicts.items())
        lines.append(told or ("nothing was changed" if found.errors or found.unread else "nothing matches"))
    lines += remark_lines(found.remarks)
    if found.unfinished:
        why = "an error ended it" if found.errors else "the limit is reached"
        go_on = go_on or f"go on with --after '{found.next}'"
        lines.append(f"{why}; more may match on {', '.join(found.unfinished)}: {go_on}")
    return lines


def remark_lines(remarks: Mapping[str, str]) -> list[str]:
    """Lines about what brokers have passed over."""
    return [
        printable(f"{broker}: passed over, although they may match: {remark}") for broker, remark in remarks.items()
    ]


def _until(due_ms: int, now_ms: int) -> str:
    left = due_ms - now_ms
    return format_span(left) if left >= 0 else f"-{format_span(-left)}"


def bars_of(found: OutlookResult, topic: str) -> str:
    """Draw a forecast, of one topic if it is named: a line for each bar that is not empty."""
    most = max((count for _, count in found.bars), default=0)
    begin, end, bar = format_instant(found.from_ms), format_instant(found.to_ms), format_span(found.step_ms)
    if topic:  # what is due before or later is not counted then
        lines = [f"{found.total} pending of {topic}, due from {begin} until {end}; a bar is {bar}"]
        if found.unread:
            lines.append(f"{found.unread} more in this range, of any topic, cannot be read")
    else:
        beyond = f"{found.overdue} due before {begin}, {found.later} due later than {end}"
        lines = [f"{found.total} pending: {beyond}; a bar is {bar}"]
    for from_ms, count in found.bars:
        lines.append(f"{format_instant(from_ms)}  {count:>10}  {'█' * max(1, count * BAR // most)}")
    return "\n".join(lines)
