"""Settings for every test."""

from __future__ import annotations

from hypothesis import settings

from tests.simulation.fresh import FRESH_SEED

# How long an example takes says something of the machine, and never decides a test.
settings.register_profile("timewheel", deadline=None)
settings.load_profile("timewheel")


def pytest_report_header() -> str:
    """Say what a run has drawn that no other has."""
    return f"simulation: fresh seeds from {FRESH_SEED} (again: TIMEWHEEL_FRESH_SEED={FRESH_SEED})"
