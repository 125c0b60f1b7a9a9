"""The machine and its limits: what stands beside every figure, so that it can be judged elsewhere.

The limits are what no system can beat here: one round trip between two processes over a bare socket on 127.0.0.1,
and one append of 4 KiB to a file, synced or not.

On a virtual machine whose host takes free memory back, a page that is touched first costs more than ten times what it
costs afterwards, and a store's files are such pages. What a touch costs is measured, too; `PageCache` is the way around
it.
"""

from __future__ import annotations

import mmap
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from remoting.messages.build import build_name

__all__ = [
    "CpuMeter",
    "PageCache",
    "cpu_seconds",
    "describe",
    "disk_limits",
    "memory_limits",
    "resident_bytes",
    "socket_limits",
    "store_bytes",
]

# The other process of the bare socket: answers what comes with 250 bytes, and ends with the connection.
_ECHO = """
import socket
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    sock, _ = listener.accept()
sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while sock.recv(65536):
    sock.send(bytes(250))
"""
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def describe(folder: Path) -> dict[str, Any]:
    """Say what machine this is; ``folder`` is where the stores will be."""
    memory = _PAGE * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory,
        "kernel": f"{platform.system()} {platform.release()}",
        "filesystem": _filesystem(folder),
        "python": f"{platform.python_version()}, Timewheel {build_name()}",
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(folder: Path) -> str:
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if str(folder.resolve()).startswith(place) and len(place) >= len(best[0]):
            best = (place, kind)
    return best[1]


def socket_limits(body_bytes: int = 1400, seconds: float = 0.5) -> dict[str, float]:
    """Measure a bare socket: microseconds of a round trip (a message there, 250 bytes back) to another process."""
    echo = subprocess.Popen([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert echo.stdout is not None
    message, waits = bytes(body_bytes), []
    with socket.create_connection(("127.0.0.1", int(echo.stdout.readline()))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.perf_counter() + seconds
        while (before := time.perf_counter()) < until:
            sock.send(message)
            sock.recv(4096)
            waits.append(time.perf_counter() - before)
    echo.communicate()
    return {"socket_round_trip_us": round(statistics.median(waits) * 1e6, 1)}


def disk_limits(folder: Path, appends: int = 300) -> dict[str, float]:
    """Measure the bare disk: microseconds for an append of 4 KiB, and for one followed by a data sync."""
    path = folder / "disk-limit"
    page = os.urandom(4096)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    plain: list[float] = []
    synced: list[float] = []
    try:
        os.posix_fallocate(fd, 0, 4096 * appends * 2)
        os.fsync(fd)
        for number in range(appends * 2):
            before = time.perf_counter()
            os.pwrite(fd, page, number * 4096)
            if number >= appends:
                os.fdatasync(fd)
            (plain if number < appends else synced).append(time.perf_counter() - before)
    finally:
        os.close(fd)
        path.unlink()
    return {
        "disk_append_us": round(statistics.median(plain) * 1e6, 1),
        "disk_append_sync_us": round(statistics.median(synced) * 1e6, 1),
    }


def memory_limits(size: int = 256 << 20) -> dict[str, float]:
    """Measure memory: microseconds for the first touch of a page, median and slowest tenth of its stretches."""
    stretch = 256 * _PAGE
    costs: list[float] = []
    with mmap.mmap(-1, size) as memory:
        for begin in range(0, size, stretch):
            before = time.perf_counter()
            for at in range(begin, min(size, begin + stretch), _PAGE):
                memory[at] = 1
            costs.append((time.perf_counter() - before) / (stretch / _PAGE) * 1e6)
    slowest = statistics.quantiles(costs, n=10)[-1] if len(costs) > 1 else costs[0]
    return {"memory_touch_us": round(statistics.median(costs), 2), "memory_touch_p90_us": round(slowest, 2)}


class PageCache:
    """Fills the page cache with a file of holes, as the cache of a machine is that has been up for a while.

    The kernel then gives pages to a store that were in use before. Nothing of the file is read twice: its pages are
    always older than those of a store, and go first.
    """

    def __init__(self, folder: Path, free_bytes: int = 1 << 30) -> None:
        """``free_bytes`` is what is left free."""
        self._path = folder / "page-cache"
        self._free_bytes = free_bytes
        self._at = 0
        with self._path.open("wb") as file:
            file.truncate(1 << 43)

    def fill(self) -> int:
        """Read on until little memory is free; answers how many bytes were read."""
        buffer = bytearray(1 << 20)
        begin = self._at
        total = _meminfo_bytes("MemTotal")
        with self._path.open("rb", buffering=0) as file:
            file.seek(begin)
            while self._at - begin < total and _meminfo_bytes("MemFree") > self._free_bytes:
                for _ in range(64):
                    self._at += file.readinto(buffer) or 0
        return self._at - begin


def _meminfo_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0


def cpu_seconds(pids: list[int]) -> float:
    """Processor time that these processes have used, user and system; what has ended counts as nothing."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2 :].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def resident_bytes(pids: list[int]) -> tuple[int, int]:
    """Memory of these processes: (RSS, PSS) in bytes; PSS shares out what several processes map."""
    rss = pss = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        for line in text.splitlines():
            name, _, rest = line.partition(":")
            if name == "Rss":
                rss += int(rest.split()[0]) * 1024
            elif name == "Pss":
                pss += int(rest.split()[0]) * 1024
    return rss, pss


def store_bytes(folder: Path) -> int:
    """Disk space used below a folder (blocks, not lengths: preallocated holes count as nothing)."""
    total = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                total += path.stat().st_blocks * 512
        except OSError:
            continue
    return total


class CpuMeter:
    """Says how much of a core some processes used between two moments."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._before = (time.perf_counter(), cpu_seconds(pids))

    def share(self) -> float:
        """Cores used since it was made."""
        seconds, used = self._before
        return (cpu_seconds(self._pids) - used) / max(1e-9, time.perf_counter() - seconds)
