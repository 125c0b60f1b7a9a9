"""``python -m bench.running.named …``: `timewheel …` whose threads have their names for the operating system, too.

Python keeps the names of threads to itself; tools that look at a process from outside (``perf``, ``top -H``, /proc) see
the command's name on all of them. For the first `SECONDS` a thread of this file writes the names where those look.
"""

from __future__ import annotations

import runpy
import threading
import time
from pathlib import Path

__all__ = ["SECONDS", "name_threads"]

SECONDS = 10.0
_EVERY_S = 0.25
_MAIN = "loop"


def name_threads() -> None:
    """Name all threads that there are now, the main thread `loop`."""
    for thread in threading.enumerate():
        name = _MAIN if thread is threading.main_thread() else thread.name
        try:
            Path(f"/proc/self/task/{thread.native_id}/comm").write_text(name[:15])
        except OSError:
            pass  # it has ended


def _for_a_while() -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        name_threads()
        time.sleep(_EVERY_S)


if __name__ == "__main__":
    threading.Thread(target=_for_a_while, name="namer", daemon=True).start()
    runpy.run_module("broker.cli", run_name="__main__", alter_sys=True)
