"""How fast the page answers with so many pending: ``python -m tests.broker.process_page_at_size [--pending N]``.

A real broker is filled with timed messages that are due over a year, with bodies of 32 bytes, and ten smaller topics
beside them. Then a real Chromium opens the page, and its own figures of every request to the API are told: first while
it loads, then over half a minute in which it looks each second, with clicks on a topic and on "all". At the same time
messages come due, a hundred a second, and how late they were is told, too.

10,000,000 need some 4 GB of disk and some minutes. ``--built`` is a compiled build (``./run compile``:
``.cache/compiled``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.generator.load import Load
from bench.peers.ours import OurBroker
from bench.peers.ports import free_port
from tests.support.chromium import Chromium
from tests.support.door import ask
from tests.support.wait import let_pass, wait_until
from tests.support.wire import Wire

__all__ = ["main"]

YEAR_MS = 365 * 86_400_000
LOOK_SECONDS = 30
ENTRIES = """performance.getEntriesByType('resource').filter(e => e.name.includes('/api/v1/'))
  .map(e => [e.name.split('/api/v1/')[1].split('?')[0], e.duration])"""


def _generate(load: Load) -> dict[str, Any]:
    found = subprocess.run(
        [sys.executable, "-m", "bench.generator"],
        input=json.dumps(asdict(load)) + "\n",
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def _fill(port: int, count: int) -> None:
    begun = time.monotonic()
    base = Load(port, body_bytes=32, batch=100, connections=4, in_flight=4, due_from_ms=600_000, due_to_ms=YEAR_MS)
    for number in range(10):
        base.topic, base.seed, base.first_number = f"Small{number}", number, number << 40
        base.count, base.seconds = count // 1000, 600.0
        _generate(base)
    base.topic, base.first_number = "Bench", 1 << 50
    base.count, base.seconds = count - 10 * (count // 1000), 3600.0
    _generate(base)
    print(f"filled in {time.monotonic() - begun:.0f} s", flush=True)


def _tell(what: str, rows: list[tuple[str, float]]) -> None:
    by_path: dict[str, list[float]] = {}
    for path, ms in rows:
        by_path.setdefault(path if path.count("/") < 2 else "pending/{id}", []).append(ms)
    for path, found in sorted(by_path.items()):
        found.sort()
        print(
            f"{what:10} {path:20} {len(found):4} requests, median {statistics.median(found):6.1f} ms, "
            f"95 of 100 {found[int(len(found) * 0.95)]:6.1f}, longest {found[-1]:6.1f}",
            flush=True,
        )


def _look(http: int) -> None:
    with Chromium() as browser:
        begun = time.perf_counter()
        browser.visit(f"http://127.0.0.1:{http}/", 1280)
        for selector in ("#topics tbody tr", "#forecast .column", "#figures dd"):
            script = f"document.querySelectorAll('{selector}').length > 0"
            wait_until(lambda script=script: browser.evaluate(script), 60, selector)
        print(f"{'load':10} all shown {1000 * (time.perf_counter() - begun):.0f} ms after the address was given")
        _tell("load", browser.evaluate(ENTRIES))
        browser.evaluate("performance.clearResourceTimings(); performance.setResourceTimingBufferSize(100000)")
        for step in range(LOOK_SECONDS):
            if step == 5:
                browser.evaluate("document.querySelectorAll('#topics tbody button')[3].click()")
            if step == 15:
                browser.evaluate("document.getElementById('all').click()")
            let_pass(1.0)
        _tell("live", browser.evaluate(ENTRIES))
        print(browser.evaluate("document.getElementById('figures').innerText").replace("\n", " "), flush=True)


def main() -> None:
    """Fill, look, tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pending", type=int, default=10_000_000)
    parser.add_argument("--built", type=Path)
    parser.add_argument("--folder", type=Path, help="Where the store may lie.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        http = free_port()
        settings = {"httpListen": f"127.0.0.1:{http}", "flushDiskType": "ASYNC_FLUSH"}
        broker = OurBroker(Path(folder), settings, sources=given.built)
        try:
            broker.start()
            with Wire(broker.address) as wire:
                for topic in ("Bench", "Due", *(f"Small{number}" for number in range(10))):
                    wire.create_topic(topic, 8)
            _fill(broker.port, given.pending)
            let_pass(10.0)
            load = Load(
                broker.port, topic="Due", body_bytes=32, connections=1, rate=100, count=6000, seconds=60, tolerant=True
            )
            load.due_from_ms, load.due_to_ms, load.first_number = 1_000, 5_000, 1 << 60
            sender = threading.Thread(target=_generate, args=(load,), daemon=True)
            sender.start()
            _look(http)
            lateness = ask(http, "/api/v1/overview").json["lateness"]
            print("late, ms:", dict(zip([*lateness["bounds_ms"], "more"], lateness["since_start"], strict=True)))
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
