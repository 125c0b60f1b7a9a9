"""Settings for every test, and how tests run side by side."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.simulation.fresh import FRESH_SEED
from tests.support import workers
from tests.support.chromium import Chromium
from tests.support.figures import FIGURES
from tests.support.need import need

# JVMs of tests live for seconds: the second compiler and the verifier of byte code would cost more than they bring
# (half of a broker's start).
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
os.environ.setdefault("JDK_JAVA_OPTIONS", JVM_OPTIONS)

if "PYTEST_XDIST_WORKER" in os.environ:
    WORKER = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    os.environ["TIMEWHEEL_PORTS"] = workers.ports_of(WORKER, int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))

WORKER_FIGURES = "lateness figures"

# How long an example takes says something of the machine, and never decides a test.
settings.register_profile("timewheel", deadline=None)
settings.load_profile("timewheel")


def pytest_report_header() -> str:
    """Say what a run has drawn that no other has."""
    return f"simulation: fresh seeds from {FRESH_SEED} (again: TIMEWHEEL_FRESH_SEED={FRESH_SEED})"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what takes long."""
    if workers.is_long(item.nodeid):
        item.add_marker("long")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A worker's tests in the order in which they are dealt out."""
    if hasattr(config, "workerinput"):
        items[:] = workers.in_order(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector of cycles from modules and thousands of tests: they stay to the end, half a million objects.

    It looked through them again and again: a third of the time to collect them, a sixth of the tests' own.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What ``-n auto`` means; ``PYTEST_XDIST_AUTO_NUM_WORKERS`` says otherwise."""
    return int(os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or workers.worker_count())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out whole scopes."""
    return workers.scheduler(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the figures of a worker process to the one that reports."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[WORKER_FIGURES] = FIGURES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the figures of a worker process that ends."""
    FIGURES.extend(getattr(node, "workeroutput", {}).get(WORKER_FIGURES, []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the figures that the tests gathered."""
    if FIGURES:
        terminalreporter.section("lateness with stock clients")
        for line in sorted(FIGURES):
            terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    """A headless Chromium for the tests of a file."""
    with need(Chromium) as found:
        yield found
