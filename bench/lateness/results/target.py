"""The service level of a run, ``--target``: at least this share of messages is at most this late."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

__all__ = ["DEFAULT_TARGET", "Target", "parse_target"]

_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*within\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*")
_LIMIT_MS_MAX = 100 * 365 * 86_400_000
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


@dataclass(frozen=True, slots=True)
class Target:
    """At least ``share`` (0 … 1) of the due messages are delivered at most ``limit_ms`` late."""

    share: float
    limit_ms: int

    def judge(self, found: float | None) -> dict[str, Any]:
        """Compare it with the share found, in the form of ``summary.json``. It holds if nothing was due."""
        return {
            "share": self.share,
            "limit_ms": self.limit_ms,
            "found": found,
            "holds": found is None or found >= self.share,
        }


DEFAULT_TARGET = Target(0.999, 1_000)


def parse_target(text: str) -> Target:
    """Read a target. Raises ValueError, with an example, for any other text.

    >>> parse_target("99.9% within 10ms")
    Target(share=0.999, limit_ms=10)
    """
    found = _PATTERN.fullmatch(text)
    expected = "a share and a time are expected, as in '99.9% within 10ms'"
    if not found:
        raise ValueError(f"{text!r:.200}: {expected}")
    share, limit_ms = round(float(found[1]) / 100, 12), float(found[2]) * _UNITS_MS[found[3]]
    if not 0 < share <= 1:
        raise ValueError(f"{text!r:.200}: {expected}; the share is above 0 and at most 100 %")
    if limit_ms > _LIMIT_MS_MAX or 0 < limit_ms < 1:
        raise ValueError(f"{text!r:.200}: {expected}; the time is whole milliseconds, and at most 100 years")
    return Target(share, round(limit_ms))
