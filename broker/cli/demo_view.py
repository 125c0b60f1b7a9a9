"""The view of `timewheel demo`: pending messages, and how late each one came."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from broker.cli.tally import Tally, summary

__all__ = ["DemoView", "live_view"]

ROWS = 12
REFRESH_PER_S = 8


class DemoView:
    """The state of the view. The event loop fills it, and a thread of rich's draws it."""

    def __init__(self, tally: Tally, messages: int) -> None:
        self._tally = tally
        self._messages = messages
        self._latest: deque[tuple[int, int, int]] = deque(maxlen=ROWS)
        self.all_sent = False

    def came(self, due_ms: int, store_ms: int, received_ms: int) -> None:
        """Add a message to the latest ones."""
        self._latest.append((due_ms, store_ms, received_ms))

    def line(self) -> str:
        """The state as one line of text."""
        tally = self._tally
        return (
            f"{len(tally.seen)} of {tally.sent_count} came, {tally.sent_count - len(tally.seen)} pending; "
            f"at the broker {summary(tally.broker_late_ms)}; at the consumer {summary(tally.consumer_late_ms)}"
        )

    def draw(self) -> RenderableType:
        """The state as a picture."""
        tally = self._tally
        came = len(tally.seen)
        head = Table.grid(padding=(0, 2))
        head.add_row("pending", Text(str(max(0, tally.sent_count - came)), style="bold"), _bar(came, self._messages))
        head.add_row("delivered", Text(str(came), style="bold"), "" if self.all_sent else "sending …")
        head.add_row("late at the broker", "", summary(list(tally.broker_late_ms)))
        head.add_row("late at the consumer", "", summary(list(tally.consumer_late_ms)))
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for title in ("due", "late at the broker", "at the consumer"):
            table.add_column(title, justify="right")
        rows = list(self._latest)
        for due_ms, store_ms, received_ms in reversed(rows):
            table.add_row(_clock(due_ms), _late(store_ms - due_ms), _late(received_ms - due_ms))
        for _ in range(ROWS - len(rows)):
            table.add_row("", "", "")
        return Group(head, "", table)


def _bar(done: int, total: int) -> ProgressBar:
    return ProgressBar(total=total, completed=done, width=40)


def _clock(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000).astimezone().strftime("%H:%M:%S.") + f"{ms % 1000:03d}"


def _late(ms: int) -> Text:
    """Green up to 5 ms late, yellow up to 100 ms, red if later or early."""
    style = "green" if 0 <= ms <= 5 else "yellow" if 0 <= ms <= 100 else "bold red"
    return Text(f"{ms:+d} ms", style=style)


@contextmanager
def live_view(view: DemoView) -> Iterator[None]:
    """Show a view on the terminal until the block ends. Its last state stays there."""
    with Live(get_renderable=view.draw, refresh_per_second=REFRESH_PER_S):
        yield
