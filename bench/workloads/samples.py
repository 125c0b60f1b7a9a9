"""``perf`` beside a measurement: where each thread of a broker of ours spends its processor time.

*By code*: what executed: our native modules (in a compiled build), the interpreter, NumPy, checksums, the C library,
the kernel. *By stage*: for which folder of ours it did so. That is the folder of the innermost native function of ours
on the sample's stack: a checksum or a ``pwrite`` counts for who called it. Modules that are not native count for their
native caller. The stage ``Python`` has no native function of ours in the part of the stack that is kept (most of the
spiller). In a pure build there are no stages.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

__all__ = ["Samples", "Shares", "code_of", "native_modules", "read_samples", "shares_of"]

_SAMPLES_A_SECOND = 149
_STACK_BYTES = 8_192  # of each sample; the innermost frames come first
_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = "broker", "broker_plugin", "remoting", "service", "store"

Share = dict[tuple[str, str], float]
"""By thread and group: the group's share of the thread's samples."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """Shares of each thread's samples, by code and by stage."""

    by_code: Share = dataclasses.field(default_factory=dict)
    by_stage: Share = dataclasses.field(default_factory=dict)


def code_of(symbol: str, place: str) -> str:
    """Say what a sample was in, from its symbol and the file of the code.

    >>> code_of("CPyDef_put_rows___PutRows___add", "/x/e82a__mypyc.cpython-311-x86_64-linux-gnu.so")
    'our native code'
    >>> code_of("_PyEval_EvalFrameDefault", "/usr/bin/python3.11")
    'the interpreter'
    """
    if "kernel" in place or place.startswith("[k"):
        return "the kernel"
    file = place.rpartition("/")[2]
    if "__mypyc" in file:
        return "our native code"
    if "numpy" in place or "_multiarray" in file:
        return "NumPy"
    if "isal" in file or "igzip" in file:
        return "checksums"
    if file.startswith(("libc.", "libc-", "libm", "libpthread", "ld-")):
        return "the C library"
    if file.startswith(("python", "libpython")) or symbol.startswith("_Py"):
        return "the interpreter"
    return "other libraries"


def native_modules(files: Iterable[str]) -> dict[str, str]:
    """Map the names that mypyc gives to modules in its symbols to their folders.

    mypyc takes the shortest end of a module's name that is its own, with ``___`` for a dot.

    >>> native_modules(["store/log/recent.py", "broker/net/connection.py", "remoting/connection.py"])
    {'recent': 'store/log', 'net___connection': 'broker/net', 'remoting___connection': 'remoting'}
    """
    parts = [Path(file).with_suffix("").parts for file in files]
    found = {}
    for own in parts:
        n = 1
        while sum(other[-n:] == own[-n:] for other in parts) > 1 and n < len(own):
            n += 1
        found["___".join(own[-n:])] = "/".join(own[:-1])
    return found


def _stage_of(frames: Iterable[tuple[str, str]], modules: Mapping[str, str]) -> str:
    for symbol, place in frames:
        if "__mypyc" not in place:
            continue
        name = symbol.partition("_")[2]  # behind CPyDef_ or CPyPy_
        first, _, rest = name.partition("___")
        stage = modules.get(first) or modules.get(f"{first}___{rest.partition('___')[0]}")
        if stage is not None:
            return stage
    return "Python"


def read_samples(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Read the output of ``perf script -F comm,ip,sym,dso`` of samples with stacks.

    Yields the thread's name and the (symbol, file) of each frame, the innermost first.

    >>> list(read_samples("loop \\n\\t 55d0 read (/lib/libc.so.6)\\n\\t 7f1 CPyDef_turn___f (/x__mypyc.so)\\n\\n"))
    [('loop', [('read', '/lib/libc.so.6'), ('CPyDef_turn___f', '/x__mypyc.so')])]
    """
    for block in text.split("\n\n"):
        head, _, rest = block.strip("\n").partition("\n")
        frames = re.findall(r"^\s*[0-9a-f]+ (.*) \((.*)\)\s*$", rest, re.MULTILINE)
        if frames:
            yield head.strip(), frames


def shares_of(text: str, modules: Mapping[str, str]) -> Shares:
    """Read the output of ``perf script`` and count each thread's samples, by code and by stage.

    ``modules``: as `native_modules` returns them.
    """
    code: collections.Counter[tuple[str, str]] = collections.Counter()
    stage: collections.Counter[tuple[str, str]] = collections.Counter()
    totals: collections.Counter[str] = collections.Counter()
    for thread, frames in read_samples(text):
        totals[thread] += 1
        code[thread, code_of(*frames[0])] += 1
        stage[thread, _stage_of(frames, modules)] += 1
    if all(name == "Python" for _, name in stage):
        stage.clear()  # a pure build
    return Shares(*({key: count / totals[key[0]] for key, count in counts.items()} for counts in (code, stage)))


class Samples:
    """Samples of a process, from now on; none if ``perf`` is not installed."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._path = folder / "perf.data"
        self._process: subprocess.Popen[bytes] | None = None
        if shutil.which("perf"):
            command = ["perf", "record", "-q", "-F", str(_SAMPLES_A_SECOND), "--call-graph", f"dwarf,{_STACK_BYTES}"]
            command += ["-p", str(pid), "-o", str(self._path)]
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self) -> Shares:
        """End it and read the samples."""
        if self._process is None:
            return Shares()
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        command = ["perf", "script", "--no-inline", "-i", str(self._path), "-F", "comm,ip,sym,dso"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        self._path.unlink(missing_ok=True)
        return shares_of(done.stdout, native_modules(_native_files(_ROOT)))


def _native_files(root: Path) -> list[str]:
    """The sources of our native modules: what `./run compile`, or a wheel, has put beside them."""
    found = (path for package in _PACKAGES for path in (root / package).rglob("*.so"))
    return [str(path.relative_to(root).parent / f"{path.name.partition('.')[0]}.py") for path in found]
