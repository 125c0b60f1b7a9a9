"""The systems that are measured, ours and others, each started as its users start it."""

from __future__ import annotations

__all__: list[str] = []
