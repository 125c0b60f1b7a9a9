"""Medians with their spread, percentiles, ratios and distributions: the arithmetic of the tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["ccdf", "median", "percentile", "ratio", "weighted_percentile"]


def median(values: Sequence[float]) -> float:
    """The median of at least one value."""
    return float(statistics.median(values))


def percentile(ordered: Sequence[float] | npt.NDArray[np.float64], share: float) -> float:
    """The value at the rank that ``share`` (0 to 1) of the ordered values are below, not interpolated; 0.0 of none."""
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * share))]) if len(ordered) else 0.0


def weighted_percentile(pairs: Iterable[tuple[float, float]], shares: Sequence[float]) -> list[float]:
    """`percentile` of (value, how many times) pairs, for several shares; 0.0 of none."""
    ordered = sorted(pairs)
    if not ordered:
        return [0.0] * len(shares)
    sums = np.cumsum([count for _, count in ordered])
    ranks = [min(int(sums[-1] * share), int(sums[-1]) - 1) for share in shares]
    return [ordered[int(np.searchsorted(sums, rank, "right"))][0] for rank in ranks]


def ratio(ours: float, theirs: float, better: str) -> float | None:
    """How many times better ours is, for ``better`` "higher" or "lower" (above 1: better); None if none can be said."""
    if ours <= 0 or theirs <= 0:
        return None
    return ours / theirs if better == "higher" else theirs / ours


def ccdf(values: npt.NDArray[np.float64], points: int = 160) -> tuple[list[float], list[float]]:
    """The share of values that exceed x, as (x, share), close together where few are left: for a logarithmic axis."""
    if not len(values):
        return [], []
    ordered = np.sort(values)
    count = len(ordered)
    shares = np.unique(np.concatenate((np.linspace(1, 0.1, points // 2), np.geomspace(0.1, 1 / count, points // 2))))
    shares = shares[shares >= 1 / count][::-1]
    ranks = np.minimum(count - 1, ((1 - shares) * count).astype(np.int64))
    return [round(float(x), 4) for x in ordered[ranks]], [float(f"{share:.3g}") for share in shares]
