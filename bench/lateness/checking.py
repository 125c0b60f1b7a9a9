"""What is checked before the work begins: that the result can be written, and that Spark will take its settings."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from bench.lateness.logs.storage import StorageError
from bench.lateness.results.hdr import ENDING
from bench.lateness.results.result import CELLS, GROUPS, HISTOGRAMS, RECEIVED, Result, ResultError, read_result

__all__ = ["check_baseline", "check_master", "check_memory", "check_out"]

_MEMORY = re.compile(r"(\d+)([kmgt])b?", re.IGNORECASE)
_MIB = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
MEMORY_MIB_MIN = 512
"""Spark refuses to start with less than 450 MiB; a part of the log needs some besides."""
_MASTER = re.compile(
    r"local|local\[(\d+|\*)(, *\d+)?\]|local-cluster\[ *\d+ *, *\d+ *, *\d+ *\]|spark://[^/]+|yarn|k8s://.+"
)
_PERCENTILES = re.compile(r"(lateness|received)(-\d+)?" + re.escape(ENDING))
_TABLES = {f"{name}{ending}.parquet" for name in (*GROUPS, *CELLS) for ending in ("", RECEIVED)}


def check_memory(text: str) -> str:
    """Return it as Spark takes it; ValueError for what Spark would refuse with a stack trace.

    >>> check_memory("2G")
    '2g'
    """
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"--memory {text}: a number with m or g is expected, such as 2g or 1500m")
    if int(found[1]) * _MIB[found[2].lower()] < MEMORY_MIB_MIN:
        raise ValueError(f"--memory {text}: Spark needs at least {MEMORY_MIB_MIN}m")
    return f"{found[1]}{found[2].lower()}"


def check_master(text: str) -> str:
    """Return it; ValueError for one that this command cannot use.

    >>> check_master("local[*]")
    'local[*]'
    """
    if text.startswith("sc://"):
        raise ValueError(f"--master {text}: Spark Connect is not supported; give the cluster's own spark://HOST:PORT")
    if not _MASTER.fullmatch(text):
        raise ValueError(f"--master {text}: local[N], spark://HOST:PORT, yarn or k8s://… is expected")
    return text


def check_out(out: Path) -> None:
    """Make the result folder and try to write there; StorageError if that fails or if it would remove another's files.

    A run may take an hour: it must not find out at its end.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
        present = out / HISTOGRAMS
        names = {path.name for path in present.iterdir()} if present.exists() else set()
    except OSError as error:
        raise StorageError(f"--out {out}: nothing can be written there ({error.strerror})") from None
    foreign = {name for name in names - _TABLES if not _PERCENTILES.fullmatch(name)}
    if foreign:
        raise StorageError(
            f"--out {out}: {present} holds {min(foreign)!r}, which is no result of this command; "
            "it is not removed: give another folder"
        )


def check_baseline(folder: Path | None, out: Path) -> Result | None:
    """Read the result to compare with; ValueError if it is none, or the one that this run would replace."""
    if folder is None:
        return None
    folder = folder.resolve()
    if folder == out.resolve():
        raise ValueError(f"--baseline {folder} is --out too, and would be replaced: give two folders")
    try:
        return read_result(folder)
    except (ResultError, OSError) as error:
        raise ValueError(f"--baseline: {error}") from None
