"""The folder of a state: local, or on any file system of fsspec. A file is made whole or not at all.

New files are written under names that the manifest (``state.json``) does not have yet, and synced. Then the manifest is
replaced; at this moment the state changes. Then the files that it no longer names are removed. A run that is killed may
leave files that no manifest names; the next run removes them.

Two runs at once
    A local folder is locked. An object store has no lock. There the manifest is replaced only if it is still the one
    that the run has read (`Folder.replace`). So of two runs at once, one changes the state and the other ends with an
    error. Amazon's S3 does this with ``If-Match`` and ``If-None-Match``. With file systems that have no conditional
    write, the user must let only one run work at a time.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol
from zlib import crc32

from bench.lateness.logs.storage import StorageError, error_line, file_system, local_path
from bench.lateness.logs.webhdfs import rename_over

__all__ = ["ChangedError", "Folder", "StateError", "checksum", "folder_for"]

_LOCK = "lock"
_NEW = ".new"
_READ_BYTES = 4 << 20


class StateError(StorageError):
    """A state cannot be used; the text says why, and what to do."""


class ChangedError(StateError):
    """A file has another version than the one that was read."""


class Folder(Protocol):
    """A folder of a state."""

    @property
    def locks(self) -> bool:
        """Whether `lock` keeps other runs out."""
        ...

    def lock(self) -> None:
        """Keep other runs out until `close`. Raises StateError if one is at work."""
        ...

    def names(self) -> list[str]:
        """The files in it."""
        ...

    def read(self, name: str) -> bytes:
        """All bytes of a file. Raises FileNotFoundError if there is none, OSError or StateError if it fails."""
        ...

    def here(self, name: str) -> str:
        """The path of a file of this machine with the same bytes, until `close`. Raises OSError or StateError."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Make or replace a file as a whole; it is durable when this returns. Raises OSError or StateError."""
        ...

    def version(self, name: str) -> str:
        """The version of a file, for `replace`; empty if there is no file, or if the folder has a lock."""
        ...

    def replace(self, name: str, data: bytes, version: str) -> None:
        """As `write`, if the file still has this version. Raises ChangedError, and changes nothing, if it has not."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raises OSError or StateError."""
        ...

    def close(self) -> None:
        """Release the lock."""
        ...


def folder_for(path: str, options: str = "") -> Folder:
    """The folder of a path or URI. Raises StorageError if its file system is not available."""
    own = local_path(path)
    return _Remote(path, options) if own is None else _Local(Path(own))


class _Local:
    locks = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: int | None = None

    def lock(self) -> None:
        """Make the folder and lock it against other processes until `close`. Raises StateError, OSError."""
        self._path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise StateError(f"--state {self._path}: another run is at work on it; wait for its end") from None

    def names(self) -> list[str]:
        """Names of the files, sorted, without the lock file. Raises OSError."""
        return sorted(entry.name for entry in os.scandir(self._path) if entry.name != _LOCK)

    def read(self, name: str) -> bytes:
        """Read a file as a whole. Raises FileNotFoundError, OSError."""
        return (self._path / name).read_bytes()

    def here(self, name: str) -> str:
        """The path of the file itself: while the lock is held it does not change."""
        return str(self._path / name)

    def write(self, name: str, data: bytes) -> None:
        """Write a new file, sync it, rename it and sync the folder. Raises OSError."""
        fresh = self._path / (name + _NEW)
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        fresh.replace(self._path / name)
        self._sync()

    def version(self, name: str) -> str:  # noqa: ARG002 - nobody else writes here
        """Always empty: nobody else writes while the lock is held."""
        return ""

    def replace(self, name: str, data: bytes, version: str) -> None:  # noqa: ARG002
        """Do as `write` does: nobody else writes while the lock is held. Raises OSError."""
        self.write(name, data)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raises OSError."""
        (self._path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the lock, if it is held."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _sync(self) -> None:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class _Remote:
    """An object store writes a file as a whole. It has no lock, but S3 can replace a file on a condition.

    HDFS does not write a file as a whole, but it can rename one over another.
    """

    locks = False

    def __init__(self, uri: str, options: Mapping[str, Any] | str) -> None:
        self._uri = uri.rstrip("/")
        self._system: Any = file_system(uri, options)
        self._knows_versions = "s3" in _protocols(self._system)
        self._renames = "webhdfs" in _protocols(self._system)
        self._copies: TemporaryDirectory[str] | None = None

    def _place(self, name: str) -> str:
        return f"{self._uri}/{name}"

    def lock(self) -> None:
        """Only check that the folder can be listed: there is no lock. Raises StateError."""
        self.names()

    def names(self) -> list[str]:
        """Names of the files, sorted; none if there is no such folder. Raises StateError."""
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._uri, detail=True)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise StateError(f"--state {self._uri}: {error_line(error)}") from error
        return sorted(item["name"].rstrip("/").rpartition("/")[2] for item in found if item["type"] == "file")

    def read(self, name: str) -> bytes:
        """Read a file as a whole. Raises FileNotFoundError, StateError."""
        try:
            data: bytes = self._system.cat_file(self._place(name))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise StateError(f"--state {self._place(name)}: {error_line(error)}") from error
        return data

    def here(self, name: str) -> str:
        """Copy a file into a temporary folder, which `close` removes. Raises FileNotFoundError, StateError.

        A file is copied once, because files under one name never change.
        """
        self._copies = self._copies or TemporaryDirectory(prefix="timewheel-state-")
        path = Path(self._copies.name) / name
        if path.exists():
            return str(path)
        fresh = path.with_name(name + _NEW)
        try:
            self._system.get_file(self._place(name), str(fresh))
            fresh.replace(path)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise StateError(f"--state {self._place(name)}: {error_line(error)}") from error
        return str(path)

    def write(self, name: str, data: bytes) -> None:
        """Put a file by one request. Raises StateError."""
        self._put(name, bytes(data), {})

    def version(self, name: str) -> str:
        """The file's ETag; empty if there is none, or if the file system knows none. Raises StateError."""
        if not self._knows_versions:
            return ""
        self._system.invalidate_cache()
        try:
            return str(self._system.info(self._place(name)).get("ETag", ""))
        except FileNotFoundError:
            return ""
        except Exception as error:
            raise StateError(f"--state {self._place(name)}: {error_line(error)}") from error

    def replace(self, name: str, data: bytes, version: str) -> None:
        """Put a file by one request, on the condition that it has this ETag. Raises ChangedError, StateError."""
        if self._renames:
            self._rename(name, data)
            return
        if not self._knows_versions:
            self.write(name, data)
            return
        try:
            self._put(name, data, {"IfMatch": version} if version else {"IfNoneMatch": "*"})
        except StateError as error:
            # Servers report the failed condition in several ways, so the version of the file tells the reason.
            if self.version(name) == version:
                raise
            raise ChangedError(f"--state {self._uri}: another run has written it meanwhile; begin again") from error

    def _rename(self, name: str, data: bytes) -> None:
        """Put a file beside another one, and rename it: HDFS makes a file empty, then adds its bytes."""
        self.write(name + _NEW, data)
        try:
            rename_over(self._system, self._place(name + _NEW), self._place(name))
        except Exception as error:
            raise StateError(f"--state {self._place(name)}: {error_line(error)}") from error

    def _put(self, name: str, data: bytes, condition: dict[str, str]) -> None:
        try:
            self._system.pipe_file(self._place(name), data, **condition)
        except Exception as error:
            raise StateError(f"--state {self._place(name)}: {error_line(error)}") from error

    def remove(self, name: str) -> None:
        """Remove a file, if it is there, and its copy. Raises StateError."""
        if self._copies is not None:
            (Path(self._copies.name) / name).unlink(missing_ok=True)
        try:
            self._system.rm_file(self._place(name))
        except FileNotFoundError:
            pass
        except Exception as error:
            raise StateError(f"--state {self._place(name)}: {error_line(error)}") from error

    def close(self) -> None:
        """Remove the copies of `here`."""
        if self._copies is not None:
            self._copies.cleanup()
            self._copies = None


def checksum(path: str) -> tuple[int, int]:
    """Size and CRC-32 of a file of this machine, read a few megabytes at a time. Raises OSError."""
    size = crc = 0
    with open(path, "rb") as file:
        while data := file.read(_READ_BYTES):
            size, crc = size + len(data), crc32(data, crc)
    return size, crc


def _protocols(system: Any) -> tuple[str, ...]:
    protocol = system.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
