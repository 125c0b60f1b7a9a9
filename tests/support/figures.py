"""Lines that tests want to show at the end of the run, from whichever worker process they come."""

from __future__ import annotations

__all__ = ["FIGURES"]

FIGURES: list[str] = []
"""The figures of this process; those of the worker processes come when they end (tests/conftest.py)."""
