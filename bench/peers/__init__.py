"""The systems that are measured, each started as its users start it: ours, and real peers beside it."""

from __future__ import annotations

__all__: list[str] = []
