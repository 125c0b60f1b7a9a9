"""Checks before the work begins: that Spark will accept its settings, and that options fit together."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.lateness.results.result import Result, ResultError, read_result

__all__ = [
    "check_baseline",
    "check_bounds",
    "check_master",
    "check_memory",
    "check_rounds",
    "check_storage",
    "executors",
    "pairs",
    "task_bytes",
]

_MEMORY = re.compile(r"(\d{1,9})([kmgt])b?", re.IGNORECASE)
_MEMORY_MIB_MAX = 64 << 20
_MIB = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}
MEMORY_MIB_MIN = 512
"""Spark refuses to start with less than 450 MiB; a part of the log needs some more."""
_TASK_MIB_MIN = 256
_LOCAL_CLUSTER = re.compile(r"local-cluster\[ *(\d{1,9}) *, *(\d{1,9}) *, *(\d{1,9}) *\]")
_EXECUTOR_MEMORY = "1g"
"""Spark's own, if no option sets it."""
_MASTER = re.compile(
    rf"local|local\[([1-9]\d{{0,3}}|\*)(, *[1-9]\d{{0,3}})?\]|{_LOCAL_CLUSTER.pattern}"
    r"|spark://[^/\s,:]+:\d+(,[^/\s,:]+:\d+)*|spark://(\[[0-9a-fA-F:]+\]:\d+)|yarn|k8s://\S+"
)
_HAVE_OPTIONS = {"spark.master": "--master", "spark.driver.memory": "--memory"}


def check_memory(text: str, option: str = "--memory") -> str:
    """Return a size as Spark accepts it. Raises ValueError for one that Spark would refuse with a stack trace.

    >>> check_memory("2G")
    '2g'
    """
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{option} {text:.100}: a number with m or g is expected, such as 2g or 1500m")
    if int(found[1]) * _MIB[found[2].lower()] < MEMORY_MIB_MIN:
        raise ValueError(f"{option} {text}: Spark needs at least {MEMORY_MIB_MIN}m")
    if int(found[1]) * _MIB[found[2].lower()] > _MEMORY_MIB_MAX:
        raise ValueError(f"{option} {text}: more than 64t is no machine's")
    return f"{found[1]}{found[2].lower()}"


def executors(memory: str | None, cores: int | None) -> dict[str, str]:
    """Spark's settings for executors: Python gets as much memory as Java, because it does the work.

    >>> executors("4G", 2)["spark.executor.pyspark.memory"]
    '4g'
    """
    found = {} if cores is None else {"spark.executor.cores": str(cores)}
    if memory is not None:
        size = check_memory(memory, "--executor-memory")
        found |= {"spark.executor.memory": size, "spark.executor.pyspark.memory": size}
    return found


def pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """Read ``--spark KEY=VALUE``. Raises ValueError for anything else."""
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ValueError(f"--spark {text}: KEY=VALUE is expected")
        if name in _HAVE_OPTIONS:
            raise ValueError(f"--spark {name}=…: give it as {_HAVE_OPTIONS[name]}")
        if name == "spark.executor.memory":
            check_memory(value, f"--spark {name}")
        found[name] = value
    return found


def task_bytes(memory: str, settings: Mapping[str, str], master: str) -> int:
    """Bytes of memory for one task: a share of the executor's, or here of the driver's; at least 256 MB.

    Raises ValueError for a ``local-cluster[…]`` whose workers are too small for these settings.

    >>> task_bytes("2g", {"spark.executor.memory": "8g", "spark.executor.cores": "4"}, "yarn") >> 20
    2048
    """
    size, cores = settings.get("spark.executor.memory", _EXECUTOR_MEMORY), settings.get("spark.executor.cores", "1")
    cluster = _LOCAL_CLUSTER.fullmatch(master)
    if cluster:
        _check_local_cluster(cluster, settings)
        cores = settings.get("spark.executor.cores", cluster[2])  # an executor takes all of a worker, unless told
    elif master.startswith("local"):
        size, cores = memory, str(len(os.sched_getaffinity(0)))
    elif "spark.executor.memory" not in settings:
        cores = "1"
    mib = _mib(size, _TASK_MIB_MIN)
    return int(max(mib / (int(cores) if cores.isdigit() and int(cores) else 1), _TASK_MIB_MIN)) << 20


def _mib(size: str, otherwise: float) -> float:
    found = _MEMORY.fullmatch(size.strip())
    return int(found[1]) * _MIB[found[2].lower()] if found else otherwise


def _check_local_cluster(found: re.Match[str], settings: Mapping[str, str]) -> None:
    """Raise ValueError for a ``local-cluster[…]`` that Spark would refuse with a stack trace, or wait for for ever."""
    master = found[0]
    workers, cores, mib = map(int, found.groups())
    if not workers or not cores:
        raise ValueError(f"--master {master}: at least one worker with one core is expected")
    size, wanted = settings.get("spark.executor.memory", _EXECUTOR_MEMORY), settings.get("spark.executor.cores", "1")
    if mib < _mib(size, 0):
        raise ValueError(
            f"--master {master}: a worker has {mib} MiB, and an executor takes {size}: give it more, or a smaller "
            f"--executor-memory (at least {MEMORY_MIB_MIN}m)"
        )
    if wanted.isdigit() and int(wanted) > cores:
        raise ValueError(f"--master {master}: a worker has {cores} cores, and an executor takes {wanted}")


def check_master(text: str) -> str:
    """Return a Spark master. Raises ValueError for one that this command cannot use.

    >>> check_master("local[*]")
    'local[*]'
    """
    if text.startswith("sc://"):
        raise ValueError(f"--master {text}: Spark Connect is not supported; give the cluster's own spark://HOST:PORT")
    if not _MASTER.fullmatch(text):
        raise ValueError(f"--master {text}: local[N], spark://HOST:PORT, yarn or k8s://… is expected")
    return text


def check_storage(text: str) -> None:
    """Raise ValueError unless a text is empty or a JSON object.

    >>> check_storage('{"key": "k"}')
    """
    try:
        right = not text or isinstance(json.loads(text), dict)
    except ValueError:
        right = False
    if not right:  # the value may hold a secret
        raise ValueError('--storage is no JSON object: give one, such as \'{"key": "…", "secret": "…"}\'')


def check_rounds(follows: bool, refresh: float, given: Sequence[str]) -> None:
    """Raise ValueError for a refresh that is no number, or for options ``given`` that need ``--follow``."""
    if refresh != refresh:  # not a number
        raise ValueError(f"--refresh {refresh}: a number of seconds is expected")
    if given and not follows:
        raise ValueError(f"{given[0]} says how --follow goes on: give --follow, too, or leave it out")


def check_bounds(since_ms: int | None, until_ms: int | None) -> None:
    """Raise ValueError for bounds with nothing between them."""
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise ValueError("--since must lie before --until: nothing is due between them")


def check_baseline(folder: Path | None, out: Path) -> Result | None:
    """Read the result to compare with. Raises ValueError if it is none, or is the one that this run replaces."""
    if folder is None:
        return None
    folder = folder.resolve()
    if folder == out.resolve():
        raise ValueError(f"--baseline {folder} is --out too, and would be replaced: give two folders")
    try:
        found = read_result(folder)
    except ResultError as error:
        raise ValueError(f"--baseline: {error}") from None
    except OSError as error:
        raise ValueError(f"--baseline: {folder} cannot be read ({error.strerror})") from None
    for key in ("total", "sources", "target"):
        if key not in found.summary:
            raise ValueError(f"--baseline: {folder}: its summary has no {key}: run `timewheel lateness` there again")
    return found
