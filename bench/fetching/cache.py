"""A folder for large things that are fetched or built once: clients, peers, and builds of them.

Each entry is a folder named for its content and a hash of everything that goes into it. It is made in a temporary
folder beside its place and renamed when it is finished, with a ``complete`` stamp inside; a lock file lets
a second run wait for the first. So an interrupted fetch leaves nothing that looks finished.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

__all__ = ["FetchError", "MissingToolError", "cache_root", "cached", "fetch_maven", "need_tools", "run_tool"]

APT_PACKAGES = {
    "java": "openjdk-17-jdk-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "node": "nodejs",
    "npm": "npm",
    "go": "golang-go",
    "gcc": "gcc",
}
FETCH_SECONDS = 900


class MissingToolError(Exception):
    """A program outside Python is missing. The text says which, and what to install."""


class FetchError(Exception):
    """A package client failed. The text has the end of its output."""


def cache_root() -> Path:
    """Say where fetched things are kept: $TIMEWHEEL_CACHE, else ~/.cache/rocketmq-timewheel."""
    named = os.environ.get("TIMEWHEEL_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "rocketmq-timewheel"


def need_tools(*names: str) -> None:
    """Raise MissingToolError unless all the programs named are on the PATH."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        packages = " ".join(sorted({APT_PACKAGES[name] for name in missing}))
        raise MissingToolError(f"{', '.join(missing)} not found: apt install {packages}")


def cached(name: str, inputs: Iterable[Path | str], make: Callable[[Path], None]) -> Path:
    """Return the finished entry for these inputs, making it first if need be.

    ``inputs`` are files (their bytes count) and strings (versions, options); ``make`` fills an empty folder.
    """
    digest = hashlib.sha256()
    for item in inputs:
        data = item.read_bytes() if isinstance(item, Path) else item.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    root = cache_root()
    place = root / f"{name}-{digest.hexdigest()[:12]}"
    if (place / "complete").exists():
        return place
    root.mkdir(parents=True, exist_ok=True)
    with open(root / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (place / "complete").exists():
            return place
        for left_over in (place, *root.glob(f".{name}-*.tmp")):
            shutil.rmtree(left_over, ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix=f".{name}-", suffix=".tmp", dir=root))
        make(work)
        (work / "complete").touch()
        work.rename(place)
    return place


def run_tool(command: Sequence[str | Path], cwd: Path, env: dict[str, str] | None = None) -> None:
    """Run a package client or compiler to its end. Raises FetchError with its last lines if it fails."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{command[0]} took longer than {FETCH_SECONDS} s") from error
    if done.returncode:
        tail = done.stdout.decode(errors="replace").strip().splitlines()[-12:]
        raise FetchError(f"{' '.join(map(str, command))} failed:\n" + "\n".join(tail))


def fetch_maven(pom: Path, into: Path, *options: str) -> None:
    """Copy the jars that a pom asks for into a folder."""
    run_tool(
        ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={into}", *options],
        cwd=into.parent,
    )
