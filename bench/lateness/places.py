"""Checks the folders and files that options name before the work begins.

A run may take an hour, so it must not fail at its end because a result cannot be written. And it must not remove a file
that another program has made.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.lateness.logs.sources import LogSource
from bench.lateness.logs.storage import StorageError, local_path
from bench.lateness.results.hdr import ENDING
from bench.lateness.results.result import CELLS, GROUPS, HISTOGRAMS, RECEIVED, SUMMARY

__all__ = ["alone_in", "check_here", "check_places", "check_received"]

_PAGE, _ROWS = "report.html", "received.parquet"
_TABLES = {f"{name}{ending}.parquet" for name in (*GROUPS, *CELLS) for ending in ("", RECEIVED)}
_OURS = re.compile("|".join([*map(re.escape, sorted(_TABLES)), r"(lateness|received)(-\d+)?" + re.escape(ENDING)]))
_OF_ROWS = re.compile(r"\.?(part-.*\.parquet|_SUCCESS)(\.crc)?")
_OF_A_RUN = re.compile(r"\.rows-[a-z0-9_]{8}")
"""What the local engine keeps there while it is at work."""
_OF_A_BROKER = ("commitlog", "config", "consumequeue", "index", "timewheel")


def check_places(
    out: Path, state: str | None, sources: Sequence[LogSource], received: Sequence[str] = (), follows: bool = False
) -> None:
    """Check the folders of ``--state`` and ``--out``, and make the latter. Raises ValueError if one cannot be used."""
    _check_state(state, sources)
    _check_out(out, sources, received, follows)


def _check_out(out: Path, sources: Sequence[LogSource], received: Sequence[str], follows: bool) -> None:
    """Make the result folder and try to write there.

    Raises ValueError if that fails, if the folder belongs to a store that is read, or if something else in it has the
    name of a result and would be lost.
    """
    if "://" in str(out) or ":/" in str(out):
        raise ValueError(f"--out {out}: a folder of this machine is expected")
    _outside("--out", out, sources)
    rows = out / _ROWS
    if any(Path(path).resolve() in (rows.resolve(), *rows.resolve().glob("*")) for path in received):
        raise ValueError(f"--received {rows} would be replaced by this run: give another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
        for name in (SUMMARY, _PAGE):
            _check_file(out, name)
        for name in (HISTOGRAMS, f".{HISTOGRAMS}.new"):
            _check_folder(out, name, _OURS)
        if received:
            _check_folder(out, _ROWS, _OF_ROWS)
        if follows:
            _check_folder(out, "follow", re.compile(".*"))
    except OSError as error:
        raise ValueError(f"--out {out}: nothing can be written there ({error.strerror}): give another folder") from None


def _check_file(out: Path, name: str) -> None:
    """Check a file that is written under another name first, then renamed."""
    path, half = out / name, out / f"{'.' if name == SUMMARY else ''}{name}.new"
    if path.is_dir() and not path.is_symlink():
        raise ValueError(f"--out {out}: {path} is a folder, and a file is to be written there: give another folder")
    if half.is_symlink() or (half.exists() and not half.is_file()):
        raise ValueError(f"--out {out}: {half} is no file of this command: remove it, or give another folder")


def _check_folder(out: Path, name: str, ours: re.Pattern[str]) -> None:
    """Check a folder that is replaced as a whole."""
    path = out / name
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ValueError(f"--out {out}: {path} is no folder, and one is to be written there: give another folder")
    if not path.exists():
        return
    for entry in sorted(path.iterdir()):
        if not ours.fullmatch(entry.name) or (name != "follow" and entry.is_dir() and not entry.is_symlink()):
            raise ValueError(
                f"--out {out}: {path} holds {entry.name!r}, which is no result of this command; "
                "it is not removed: give another folder"
            )
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(f"--out {out}: {path} cannot be replaced (no permission): give another folder")


def _outside(option: str, folder: Path, sources: Iterable[LogSource]) -> None:
    """Raise ValueError for a folder that is a broker's, contains a store that is read, or is the root."""
    place = folder.resolve()
    if place == Path(place.anchor):
        raise ValueError(f"{option} {folder} is the root of all files of this machine: give a folder of its own")
    for source in sources:
        own = local_path(source.path)
        if own is None:
            continue
        root = Path(own).resolve()
        root = root.parent if root.name == "commitlog" else root
        bare = not (root / "commitlog").is_dir()
        kept = [root / name for name in _OF_A_BROKER]
        if place == root or any(one in (place, *place.parents) for one in ([root] if bare else kept)):
            raise ValueError(f"{option} {folder} is in the store that is read: give a folder outside of it")
        if place in root.parents:
            raise ValueError(f"{option} {folder} holds the store that is read: give a folder beside it")


def _check_state(state: str | None, sources: Sequence[LogSource]) -> None:
    """Raise ValueError for a state that is no folder, or belongs to a store that is read."""
    own = None if state is None else local_path(state)
    if own is None:
        return
    path = Path(own)
    if path.exists() and not path.is_dir():
        raise ValueError(f"--state {state} is no folder: give a folder, which is made if it is not there")
    _outside("--state", path, sources)


def check_received(paths: Sequence[str]) -> tuple[str, ...]:
    """The paths, without ``file://``. Raises ValueError for one that cannot be read."""
    plain = tuple(local_path(path) or path for path in paths)
    for path in plain:
        if local_path(path) is None:
            continue
        try:
            if Path(path).is_dir():
                if not path.rstrip("/").endswith(".parquet"):
                    raise ValueError(
                        f"--received {path} is a folder: a file of `timewheel consume --record` is expected"
                    )
                continue
            with open(path, "rb"):
                pass
        except FileNotFoundError:
            raise ValueError(f"--received {path}: there is no such file") from None
        except OSError as error:
            raise ValueError(f"--received {path}: it cannot be read ({error.strerror})") from None
    return plain


def check_here(received: Sequence[str]) -> None:
    """Raise ValueError for receipts on another storage: the local engine reads only files of this machine."""
    for path in received:
        if local_path(path) is None:
            raise ValueError(f"--received {path}: without Spark a file of this machine is expected: copy it here")


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Lock the result folder. Raises StorageError if another run has it: each would remove the other's files.

    Rows that a killed run has left there are removed: nobody else can be at work on them.
    """
    folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"--out {out}: another run is at work there: wait for it, or give another folder"
            raise StorageError(text) from None
        except OSError:
            pass  # a file system without locks
        else:
            for path in out.glob(".rows-*"):
                if _OF_A_RUN.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
        yield
    finally:
        os.close(folder)
