"""The name of the running build: native modules on the hot path (``./run compile``), or the sources alone."""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["build_name"]


def build_name() -> str:
    """``"compiled"`` or ``"pure Python"``, without importing anything."""
    spec = find_spec("remoting.messages.record")
    native = spec is not None and spec.origin is not None and not spec.origin.endswith(".py")
    return "compiled" if native else "pure Python"
