"""How far a reading is: a line that is written over on a terminal, elsewhere a line at once and one every five seconds.

A thread of its own says it, so a source that gives nothing for a minute is not silent for a minute.

>>> said = []
>>> progress = ReadingProgress(said.append, every_s=60.0)
>>> with progress.telling(2_000_000):
...     progress.reach_bytes(500_000)
>>> said
['0.0 of 2.0 MB, 0 %']
>>> progress.words(now_s=progress.began_s + 2.0)
'0.5 of 2.0 MB, 25 %, 0.2 MB/s, 6 s left'
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

__all__ = ["ReadingProgress", "progress_for", "watched"]

_EVERY_S = 5.0
_TERMINAL_EVERY_S = 0.2
_LOOK_S = 0.2


class ReadingProgress:
    """How many bytes of logs were read; says so every ``every_s`` seconds while `telling` is at work."""

    def __init__(self, tell: Callable[[str], None], every_s: float = _EVERY_S, over: bool = False) -> None:
        """``over``: each line is written over the one before it, and an empty one at the end."""
        self._tell = tell
        self._every_s = every_s
        self._over = over
        self._whole = self._done = 0
        self._after = ""
        self._look: Callable[[], int] = lambda: 0
        self.began_s = 0.0

    def reach_bytes(self, done: int) -> None:
        """So many bytes have been read by now."""
        self._done = done

    def reach(self, part: int, whole: int) -> None:
        """``part`` of ``whole`` equal shares of the logs have been read."""
        self._done = self._whole * part // max(whole, 1)

    def after(self, words: str) -> None:
        """What is done, when everything has been read."""
        self._after = words

    @contextmanager
    def counting(self, look: Callable[[], int]) -> Iterator[None]:
        """Ask ``look`` for the bytes that were read whenever there is something to say."""
        self._look = look
        try:
            yield
        finally:
            self._done = look()
            self._look = lambda: 0

    @property
    def done_bytes(self) -> int:
        """How many bytes have been read."""
        return max(self._done, self._look())

    def words(self, now_s: float | None = None) -> str:
        """How far it is at a moment of `time.monotonic`; now, if none is given."""
        if self._after:
            return self._after
        done = min(self.done_bytes, self._whole)
        if done == self._whole:
            return "read; adding up"
        text = f"{done / 1e6:,.1f} of {self._whole / 1e6:,.1f} MB, {done * 100 // self._whole} %"
        if not done:
            return text
        rate = done / max((time.monotonic() if now_s is None else now_s) - self.began_s, 1e-6)
        return f"{text}, {rate / 1e6:,.1f} MB/s, {(self._whole - done) / rate:,.0f} s left"

    @contextmanager
    def telling(self, whole_bytes: int, at_once: bool = True) -> Iterator[None]:
        """Say how far a reading of ``whole_bytes`` is while what is inside goes on; at once, too (``at_once``)."""
        self._whole, self._done, self._after = whole_bytes, 0, ""
        self.began_s = time.monotonic()
        if not whole_bytes or self._every_s == float("inf"):
            yield
            return

        def tell(done: threading.Event) -> None:
            while not done.wait(self._every_s):
                self._tell(self.words())

        if at_once:
            self._tell(self.words())
        try:
            with _beside(tell, "progress"):
                yield
        finally:
            if self._over:
                self._tell("")


def progress_for(quiet: bool) -> ReadingProgress:
    """One for this process's standard error, if it has one: a timer job may have closed it."""
    if quiet or sys.stderr is None:
        return ReadingProgress(lambda _: None, float("inf"))
    if sys.stderr.isatty():
        return ReadingProgress(_over, _TERMINAL_EVERY_S, over=True)
    return ReadingProgress(lambda text: click.echo(text, err=True))


def _over(text: str) -> None:
    click.echo(f"\r{text:<78}\r", nl=False, err=True)


@contextmanager
def watched(tracker: Any, progress: ReadingProgress) -> Iterator[None]:
    """Say how far Spark is, from its ``statusTracker``: its first stage reads the logs in shares of one size."""

    def watch(done: threading.Event) -> None:
        reads: int | None = None
        while not done.wait(_LOOK_S):
            try:
                stages = sorted(tracker.getActiveStageIds())
                infos = {number: tracker.getStageInfo(number) for number in stages}
            except Exception:  # Java is gone: whoever waits for the result says so
                return
            for number, info in infos.items():
                if info is None or not info.numTasks:
                    continue
                reads = number if reads is None else reads
                if number == reads:
                    progress.reach(info.numCompletedTasks, info.numTasks)
                elif reads not in infos:
                    progress.after(f"read; adding up: {info.numCompletedTasks} of {info.numTasks} tasks")

    with _beside(watch, "stages"):
        yield


@contextmanager
def _beside(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Have a thread work until what is inside is done; the event tells it so."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
