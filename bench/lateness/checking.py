"""What is checked before the work begins: that the result can be written, and that Spark will take its settings."""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.lateness.logs.storage import StorageError
from bench.lateness.results.hdr import ENDING
from bench.lateness.results.result import CELLS, GROUPS, HISTOGRAMS, RECEIVED, Result, ResultError, read_result

__all__ = [
    "alone_in",
    "check_baseline",
    "check_bounds",
    "check_master",
    "check_memory",
    "check_out",
    "check_storage",
    "executors",
    "pairs",
    "task_bytes",
]

_MEMORY = re.compile(r"(\d+)([kmgt])b?", re.IGNORECASE)
_MIB = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
MEMORY_MIB_MIN = 512
"""Spark refuses to start with less than 450 MiB; a part of the log needs some besides."""
_TASK_MIB_MIN = 256
_MASTER = re.compile(
    r"local|local\[(\d+|\*)(, *\d+)?\]|local-cluster\[ *\d+ *, *\d+ *, *\d+ *\]|spark://[^/]+|yarn|k8s://.+"
)
_PERCENTILES = re.compile(r"(lateness|received)(-\d+)?" + re.escape(ENDING))
_TABLES = {f"{name}{ending}.parquet" for name in (*GROUPS, *CELLS) for ending in ("", RECEIVED)}


def check_memory(text: str, option: str = "--memory") -> str:
    """Return it as Spark takes it; ValueError for what Spark would refuse with a stack trace.

    >>> check_memory("2G")
    '2g'
    """
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{option} {text}: a number with m or g is expected, such as 2g or 1500m")
    if int(found[1]) * _MIB[found[2].lower()] < MEMORY_MIB_MIN:
        raise ValueError(f"{option} {text}: Spark needs at least {MEMORY_MIB_MIN}m")
    return f"{found[1]}{found[2].lower()}"


def executors(memory: str | None, cores: int | None) -> dict[str, str]:
    """Spark's settings for executors of a cluster: Python has as much as Java, as it does the work there.

    >>> executors("4G", 2)["spark.executor.pyspark.memory"]
    '4g'
    """
    found = {} if cores is None else {"spark.executor.cores": str(cores)}
    if memory is not None:
        size = check_memory(memory, "--executor-memory")
        found |= {"spark.executor.memory": size, "spark.executor.pyspark.memory": size}
    return found


def pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """Read ``--spark KEY=VALUE``; ValueError for what is none."""
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise ValueError(f"--spark {text}: KEY=VALUE is expected")
        found[name] = value
    return found


def task_bytes(memory: str, settings: Mapping[str, str], master: str) -> int:
    """What one task may take: of an executor's memory where that is known, here of the driver's; not below 256 MB.

    >>> task_bytes("2g", {"spark.executor.memory": "8g", "spark.executor.cores": "4"}, "yarn") >> 20
    2048
    """
    size, cores = settings.get("spark.executor.memory"), settings.get("spark.executor.cores", "1")
    if master.startswith("local") or size is None:
        size, cores = (memory, str(len(os.sched_getaffinity(0)))) if master.startswith("local") else ("1g", "1")
    found = _MEMORY.fullmatch(size.strip())
    mib = int(found[1]) * _MIB[found[2].lower()] if found else _TASK_MIB_MIN
    return int(max(mib / (int(cores) if cores.isdigit() else 1), _TASK_MIB_MIN)) << 20


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


def check_storage(text: str) -> None:
    """ValueError unless it is empty or a JSON object.

    >>> check_storage('{"key": "k"}')
    """
    try:
        right = not text or isinstance(json.loads(text), dict)
    except ValueError:
        right = False
    if not right:  # the value may hold a secret
        raise ValueError('--storage is no JSON object: give one, such as \'{"key": "…", "secret": "…"}\'')


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


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Hold the result folder; StorageError while another run holds it: each would remove the other's files."""
    folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"--out {out}: another run is at work there: wait for it, or give another folder"
            raise StorageError(text) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(folder)


def check_bounds(since_ms: int | None, until_ms: int | None) -> None:
    """ValueError for bounds with nothing between them."""
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise ValueError("--since must lie before --until: nothing is due between them")


def check_baseline(folder: Path | None, out: Path) -> Result | None:
    """Read the result to compare with; ValueError if it is none, or the one that this run would replace."""
    if folder is None:
        return None
    folder = folder.resolve()
    if folder == out.resolve():
        raise ValueError(f"--baseline {folder} is --out too, and would be replaced: give two folders")
    try:
        found = read_result(folder)
    except (ResultError, OSError) as error:
        raise ValueError(f"--baseline: {error}") from None
    for key in ("total", "sources", "target"):
        if key not in found.summary:
            raise ValueError(f"--baseline: {folder}: its summary has no {key}: run `timewheel lateness` there again")
    return found
