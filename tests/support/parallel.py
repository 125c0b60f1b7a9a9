"""Run several actions at once, each in a thread of its own, as tests with several processes want it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

__all__ = ["Background", "run_all"]

Result = TypeVar("Result")


class Background(Generic[Result]):
    """An action that runs in a thread from now on; `result` waits for it, and raises what it raised."""

    def __init__(self, action: Callable[[], Result]) -> None:
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(action,), daemon=True)
        self._thread.start()

    def _run(self, action: Callable[[], Result]) -> None:
        try:
            self._results.append(action())
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Wait for its end, whatever that is."""
        self._thread.join()

    def result(self) -> Result:
        """Wait, and return what the action returned."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]


def run_all(actions: Iterable[Callable[[], Result]]) -> list[Result]:
    """Run actions at once; return their results in order when all have ended, or raise the first error."""
    running = [Background(action) for action in actions]
    for one in running:
        one.wait()
    return [one.result() for one in running]
