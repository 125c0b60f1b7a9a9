"""Each module that makes a lock is one that the simulation gives its locks: on a real one an actor waits for ever."""

from __future__ import annotations

import re
from pathlib import Path

from tests.simulation.baton import MODULES

ROOT = Path(__file__).parents[2]
_MAKES = re.compile(r"threading\.(Lock|RLock|Condition)\(")
REAL = {
    "store.disk.files": "of the process, for the locks of directories; nobody is suspended while it is held",
    "broker.pop.reviver": "the thread's own, which the simulation does not start",
    "broker.metrics.exporter": "the thread's own, which the simulation does not start",
}


def test_every_module_that_makes_locks_is_known():
    paths = [path for package in ("store", "broker", "broker_plugin") for path in (ROOT / package).rglob("*.py")]
    makers = {
        str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
        for path in paths
        if _MAKES.search(path.read_text(encoding="utf-8"))
    }
    assert makers - REAL.keys() == set(MODULES)
    assert REAL.keys() <= makers
