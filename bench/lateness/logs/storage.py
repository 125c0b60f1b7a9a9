"""Reads files of logs: local folders with the standard library, any other URI through fsspec.

Executors of a cluster import this file, so it imports fsspec only for a URI with a scheme of its own.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from bench.lateness.logs.webhdfs import check_answers

__all__ = [
    "HIDDEN",
    "LogMovedError",
    "Storage",
    "StorageError",
    "StoredFile",
    "error_line",
    "file_system",
    "storage_for",
    "without_login",
]

AHEAD_BYTES = 8 << 20
_LEAST_BYTES = 64 << 10
"""The least bytes of a request, because a record is read in small pieces."""
_LIBRARIES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs"}
"""The library that fsspec needs for a scheme. Our error names it; fsspec's own text is long."""
HIDDEN = "…"
"""Stands where a secret was."""
_TOKEN = re.compile(r"((?:delegation|user\.name)=)[^&\s]+")
"""As WebHDFS has them in the addresses of its requests."""
_LOGIN = re.compile(r"(\w+:/{1,2})(?:[^/\s]*@|[^/\s:@]*:(?!\d+(?:[/\s]|$))\S*@)")
"""A path of `pathlib` has a single slash there. Keys of S3 have slashes, which a URI ought to write as ``%2F``."""


class StorageError(Exception):
    """A file or folder cannot be read; the text has path and reason, and no login."""

    def __init__(self, text: str = "") -> None:
        super().__init__(without_login(text))


class LogMovedError(StorageError):
    """A log was cut, repaired or replaced while it was read, or a part of it was deleted."""

    @classmethod
    def shorter(cls, path: str, size: int, end: int) -> LogMovedError:
        """The error for a file of ``size`` bytes that now ends at ``end``."""
        why = "it was cut or replaced while it was read; run again when that is over"
        return cls(f"{path}: it had {size} bytes, and now ends at {end}: {why}")


class StoredFile(Protocol):
    """A file that is read by position. ``skips``: skipping bytes costs nothing."""

    skips: bool

    def read(self, position: int, count: int) -> bytes:
        """Bytes from a position on; fewer only at the end of the file. Raises StorageError."""
        ...

    def data_end(self, size: int) -> int:
        """A position behind which there are only zeros, as far as that is known without reading; at most ``size``."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


class Storage(Protocol):
    """The part of a file system that a reading needs."""

    def sizes(self, folder: str) -> dict[str, int]:
        """Names and sizes of the files of a folder; empty if there is no such folder. Raises StorageError."""
        ...

    def is_folder(self, path: str) -> bool:
        """Whether there is such a folder. Raises StorageError."""
        ...

    def open(self, path: str, until: int | None = None) -> StoredFile:
        """Open a file for reading, mostly of the bytes before ``until``. Raises StorageError."""
        ...

    def peek(self, path: str, position: int, count: int) -> bytes:
        """Read ``count`` bytes of a file, and nothing ahead. Raises StorageError."""
        ...


def local_path(path: str) -> str | None:
    """The path of a file of this machine, without ``file://``; None for a URI of another storage.

    >>> local_path("file:///logs/a"), local_path("logs/a"), local_path("s3://logs/a")
    ('/logs/a', 'logs/a', None)
    """
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path
    return rest if scheme in ("file", "local") else None


def storage_for(path: str, options: Mapping[str, Any] | str = "") -> Storage:
    """The storage that a path or URI belongs to; ``options`` (or their JSON) go to the file system of fsspec."""
    if local_path(path) is not None:
        return _Local()
    values = json.loads(options) if isinstance(options, str) and options else dict(options or {})
    return _Remote(path, values)


def file_system(uri: str, options: Mapping[str, Any] | str = "") -> Any:
    """Return fsspec's file system for a URI. Raises StorageError if a library is missing or the options are wrong."""
    values = json.loads(options) if isinstance(options, str) and options else dict(options or {})
    try:
        from fsspec.core import url_to_fs

        system, _ = url_to_fs(uri, **values)
    except ImportError as error:
        hint = _LIBRARIES.get(uri.partition("://")[0])
        raise StorageError(f"{uri}: {f'it needs a library: pip install {hint}' if hint else error}") from error
    except (OSError, ValueError, TypeError) as error:  # TypeError: an argument is missing, as the host of webhdfs:///a
        native = "; give webhdfs://HOST:PORT/… of the name node's HTTP port, or pip install hdfs-native"
        text = str(error).partition("\n")[0]
        if without_login(uri) != uri:  # the text may have any piece of it
            text = "this is no address that its library can use: are all signs but letters and digits in it %-encoded?"
        raise StorageError(f"{uri}: {text}{native if uri.startswith('hdfs://') else ''}") from error
    if uri.startswith("webhdfs://"):
        check_answers(system)
    return system


def error_line(error: Exception) -> str:
    """The text of a library's error, in one line, without logins."""
    return without_login(" ".join(str(error).split()))


def without_login(text: str) -> str:
    """A text without the user, password and token of URIs in it.

    Everything that this command says or writes goes through here.

    >>> without_login("webhdfs://me:p@ss@host:9870/a"), without_login("/here/s3:/me:pass@logs/a")
    ('webhdfs://…@host:9870/a', '/here/s3:/…@logs/a')
    >>> without_login("s3://KEY:se/cr+et@logs/a"), without_login("hdfs://host:8020/a@b")
    ('s3://…@logs/a', 'hdfs://host:8020/a@b')
    """
    return _TOKEN.sub(rf"\1{HIDDEN}", _LOGIN.sub(rf"\1{HIDDEN}@", text))


def _read_error(path: str, error: Exception) -> StorageError:
    """The error for a file that was there when its folder was listed, and cannot be read."""
    if isinstance(error, FileNotFoundError):
        return LogMovedError(f"{path}: it was there when the reading began, and is deleted by now")
    return StorageError(f"{path}: {error_line(error)}")


class _LocalFile:
    skips = True

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise LogMovedError(f"{path}: {error.strerror}") from error
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}") from error

    def read(self, position: int, count: int) -> bytes:
        """Read ``count`` bytes at a position; fewer only at the end of the file. Raises StorageError."""
        try:
            data = os.pread(self._fd, count, position)
            while 0 < len(data) < count:
                more = os.pread(self._fd, count - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise StorageError(f"{self._path} at {position}: {error.strerror}") from error
        return data

    def data_end(self, size: int) -> int:
        """End of the last extent with data, in bytes; ``size`` where the file system cannot tell."""
        end = at = 0
        try:
            while at < size:
                at = os.lseek(self._fd, os.lseek(self._fd, at, os.SEEK_DATA), os.SEEK_HOLE)
                end = at
        except OSError as error:
            return end if error.errno == errno.ENXIO else size
        return min(end, size)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


def _plain(path: str) -> str:
    return path.partition("://")[2] if "://" in path else path


class _Local:
    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes in bytes by file name; empty if there is no such folder. Raises StorageError."""
        try:
            with os.scandir(_plain(folder)) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise StorageError(f"{folder}: {error.strerror}") from error

    def is_folder(self, path: str) -> bool:
        """Whether the path is a folder. Raises StorageError."""
        try:
            return Path(_plain(path)).is_dir()
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}") from error

    def open(self, path: str, until: int | None = None) -> StoredFile:  # noqa: ARG002 - nothing is read ahead
        """Open a file for reading. Raises StorageError."""
        return _LocalFile(_plain(path))

    def peek(self, path: str, position: int, count: int) -> bytes:
        """Read ``count`` bytes at a position of a file that is not open. Raises StorageError."""
        file = self.open(path)
        try:
            return file.read(position, count)
        finally:
            file.close()


class _RemoteFile:
    """Reads ahead: one request for some megabytes instead of one for each record.

    Bytes that were read ahead are kept until they are passed, so a reader that goes through a file requests no bytes
    twice. Bytes behind ``until`` belong to another reader and are not read ahead.
    """

    skips = False

    def __init__(self, system: Any, path: str, until: int | None = None) -> None:
        self._system = system
        self._path = path
        self._until = until
        self._start = 0
        self._data = b""

    def read(self, position: int, count: int) -> bytes:
        """Read ``count`` bytes at a position, from what was read ahead if they are in it. Raises StorageError."""
        at = position - self._start
        if not 0 <= at <= len(self._data) or at + count > len(self._data):
            kept = self._data[at:] if 0 <= at < len(self._data) else b""
            # One byte is read twice: a request that begins at the end of the object would be an error.
            begin = position + max(0, len(kept) - 1)
            ahead = len(kept) + AHEAD_BYTES
            if self._until is not None:
                ahead = min(ahead, max(self._until - position, _LEAST_BYTES))
            more = self._asked(begin, position + max(count, ahead))
            self._start, self._data, at = position, kept[:-1] + more, 0
        return self._data[at : at + count]

    def _asked(self, begin: int, end: int) -> bytes:
        try:
            data: bytes = self._system.cat_file(self._path, start=begin, end=end)
        except Exception as error:
            raise _read_error(self._path, error) from error
        return data

    def data_end(self, size: int) -> int:
        """Always ``size``: an object has no holes."""
        return size

    def close(self) -> None:
        """Drop what was read ahead."""
        self._data = b""


class _Remote:
    def __init__(self, uri: str, options: Mapping[str, Any]) -> None:
        from fsspec import AbstractFileSystem

        self._system = file_system(uri, options)
        # Its `isdir` says no, too, if the server does not answer: then a store would lack its delay store.
        self._errs = type(self._system).isdir is AbstractFileSystem.isdir

    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes in bytes by file name; empty if there is no such folder. Raises StorageError."""
        try:
            self._system.invalidate_cache()
            found = self._system.ls(folder, detail=True)
        except FileNotFoundError:
            return {}
        except Exception as error:
            raise StorageError(f"{folder}: {error_line(error)}") from error
        return {
            item["name"].rstrip("/").rpartition("/")[2]: int(item["size"]) for item in found if item["type"] == "file"
        }

    def is_folder(self, path: str) -> bool:
        """Whether the path is a folder. Raises StorageError."""
        try:
            if self._errs:
                return bool(self._system.info(path)["type"] == "directory")
            return bool(self._system.isdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except Exception as error:
            raise StorageError(f"{path}: {error_line(error)}") from error

    def open(self, path: str, until: int | None = None) -> StoredFile:
        """Return a reader of a file; nothing is read yet."""
        return _RemoteFile(self._system, path, until)

    def peek(self, path: str, position: int, count: int) -> bytes:
        """Read ``count`` bytes at a position by one request of this size. Raises StorageError."""
        if count <= 0:
            return b""
        try:
            data: bytes = self._system.cat_file(path, start=position, end=position + count)
        except Exception as error:
            raise _read_error(path, error) from error
        return data
