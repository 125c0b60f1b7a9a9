"""What both engines add up by, and when a second is hot: the part of the definitions that is not a function."""

from __future__ import annotations

__all__ = ["HOT_AT_LEAST", "HOT_ROWS", "HOT_TIMES_MEAN", "KEYS"]

HOT_ROWS = "hot"
"""Beside the names of histograms and what `bench.lateness.settle` names: what a row of the results may belong to."""
HOT_TIMES_MEAN = 5
HOT_AT_LEAST = 100
KEYS = ("source", "table", "key", "topic_id", "kind", "level", "lateness_ms", "censored", "text")
"""The group of a sum, columns of `bench.lateness.schemas.FINE_SCHEMA`."""
