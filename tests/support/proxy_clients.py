"""RocketMQ 5's clients of other languages than Java: how each is fetched and built, and the command that starts it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.cache import cached, need_tools, run_tool

__all__ = ["LANGUAGES", "language_command"]

SOURCES = Path(__file__).parent.parent / "interop" / "clients"


def _copied(name: str, tools: tuple[str, ...], files: tuple[str, ...], build: Callable[[Path], None]) -> Path:
    need_tools(*tools)
    inputs = [SOURCES / name / file for file in files]

    def make(work: Path) -> None:
        for path in inputs:
            shutil.copy(path, work)
        build(work)

    return cached(f"client-{name}", inputs, make)


def _go(work: Path) -> None:
    run_tool(["go", "build", "-mod=readonly", "-o", "client", "."], work, {"GOTOOLCHAIN": "local"})


def _node(work: Path) -> None:
    run_tool(["npm", "ci", "--no-audit", "--no-fund"], cwd=work)


def _python(work: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", "lib", "-r", "requirements.txt"]
    run_tool(pip, cwd=work)


LANGUAGES = ("go", "node", "python")


def language_command(name: str) -> list[str]:
    """Build a client if need be, and return the command that starts its driver (MissingToolError, FetchError)."""
    if name == "go":
        return [f"{_copied('go5', ('go',), ('go.mod', 'go.sum', 'client.go'), _go)}/client"]
    if name == "node":
        files = ("package.json", "package-lock.json", ".npmrc", "client.js")
        return ["node", f"{_copied('node5', ('node', 'npm'), files, _node)}/client.js"]
    folder = _copied("python5", (), ("requirements.txt", "client.python"), _python)
    return ["env", f"PYTHONPATH={folder}/lib", sys.executable, f"{folder}/client.python"]
