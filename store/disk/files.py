"""The store's only access to the disk: no other file of this package opens, renames, removes or locks.

An open file is a `store.disk.file.File`. Everything that changes state is a method of `Files` or `File`, so a test or
a simulation replaces both, and sees (and breaks) every write, sync and rename in the order in which the store asked.

What the disk promises, and what not (the rest of the store is built on exactly this):

- ``pwrite`` is visible to readers at once and durable after ``sync`` of the same file; before that a power
  cut may keep any part of it, in any order.
- After a *failed* sync the kernel has dropped the dirty pages: the bytes must be written again before a sync
  that returns well means anything.
- A new name, a rename and a removal are durable after ``sync_dir`` of the directory that holds the name.
- A write past the end of the free space fails as a whole or in part (`StoreFullError`); what got through is
  unknown, so callers write again at the same position.

No memory maps: a full disk under a map is SIGBUS, under pwrite it is an error with a name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from stat import S_IMODE

from store.disk.errors import StoreError, StoreLockedError, SyncFailedError
from store.disk.file import File, disk_error

__all__ = ["Files"]

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
"""Mode of new files, readable by the owner only: they contain messages, and settings with passwords."""
_LOCK_TEXT = b"lock"


class Files:
    """The file system as the store sees it; errors are `StoreError` with the path and the cause."""

    def __init__(self) -> None:
        self._durable: set[Path] = set()  # directories whose names `makedirs` has synced, or found durable

    def open(self, path: Path, *, create: bool = False, size: int | None = None) -> File:
        """Open to read and write; ``create`` makes it if missing, ``size`` grows it (sparse) if smaller.

        A new name is durable only after `sync_dir` of its directory.

        Raises StoreError.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), FILE_MODE)
        except OSError as cause:
            raise disk_error("cannot open", path, cause) from cause
        file = File(path, fd)
        try:
            if size is not None and file.size() < size:
                file.truncate(size)
        except BaseException:
            file.close()
            raise
        return file

    def open_to_read(self, path: Path) -> File:
        """Open an existing file read-only. Raises StoreError."""
        try:
            return File(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as cause:
            raise disk_error("cannot open", path, cause) from cause

    def open_to_others(self, path: Path) -> int:
        """The permission bits of group and others; 0 if the name does not exist. Raises StoreError."""
        try:
            return path.stat().st_mode & 0o077
        except FileNotFoundError:
            return 0
        except OSError as cause:
            raise disk_error("cannot stat", path, cause) from cause

    def listdir(self, path: Path) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory. Raises StoreError."""
        try:
            return sorted(entry.name for entry in path.iterdir())
        except FileNotFoundError:
            return []
        except OSError as cause:
            raise disk_error("cannot list", path, cause) from cause

    def exists(self, path: Path) -> bool:
        """True if the name exists, as a file or a directory."""
        return path.exists()

    def is_dir(self, path: Path) -> bool:
        """True if the name is a directory."""
        return path.is_dir()

    def makedirs(self, path: Path) -> None:
        """Create a directory and its parents; their names are durable on return, also those that existed already.

        An earlier process may have been killed between creating a directory and syncing its parent. A power cut would
        take that directory, with everything that this process puts into it. Directories are created one by one, so only
        the deepest existing one can be in that state.
        """
        missing: list[Path] = []
        step = path
        while not self.is_dir(step):
            missing.append(step)
            if step.parent == step:
                break
            step = step.parent
        if step not in self._durable:
            try:
                self.sync_dir(step.parent)
            except SyncFailedError:
                raise
            except StoreError:
                pass  # a parent that cannot be opened to sync it: no process of ours can have created a directory in it
            self._durable.add(step)
        for directory in reversed(missing):
            self._durable.discard(directory)  # a directory that was removed since
            self.mkdir(directory)
            self.sync_dir(directory.parent)
            self._durable.add(directory)

    def mkdir(self, path: Path) -> None:
        """Create one directory unless it exists; its name is durable after `sync_dir` of its parent.

        Raises StoreError.
        """
        try:
            path.mkdir(DIRECTORY_MODE, exist_ok=True)
        except OSError as cause:
            raise disk_error("cannot make directory", path, cause) from cause

    def remove(self, path: Path) -> None:
        """Remove a file, or an empty directory; nothing happens when it is missing. Raises StoreError."""
        try:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
        except OSError as cause:
            raise disk_error("cannot remove", path, cause) from cause

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing ``target``; durable after `sync_dir`. Raises StoreError."""
        try:
            source.replace(target)
        except OSError as cause:
            raise disk_error(f"cannot rename to {target}", source, cause) from cause

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable. Raises StoreError or SyncFailedError."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as cause:
            raise disk_error("cannot open directory", path, cause) from cause
        try:
            os.fsync(fd)
        except OSError as cause:
            raise SyncFailedError(f"cannot sync directory {path}: {cause.strerror} (errno {cause.errno})") from cause
        finally:
            os.close(fd)

    def read_file(self, path: Path) -> bytes:
        """Read a whole file, also one that may not be written."""
        file = self.open_to_read(path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def replace_file(self, path: Path, data: bytes) -> None:
        """Write a whole file so that after any crash the old or the new content is there, never a mixture."""
        temporary = path.with_name(path.name + ".tmp")
        file = self.open(temporary, create=True)
        try:
            # What a crash left there may be longer.
            file.truncate(0)
            file.pwrite(data, 0)
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_dir(path.parent)

    def replace_kept(self, path: Path, data: bytes) -> None:
        """Like `replace_file`, for a file outside the store: follows symbolic links, keeps mode and owner.

        Raises StoreError.
        """
        path = path.resolve()
        temporary = path.with_name(path.name + ".tmp")
        try:
            before = path.stat()
            temporary.unlink(missing_ok=True)
            # Exclusively, and without following a link: nobody else can have put a file or a link there.
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as cause:
            raise disk_error("cannot replace", path, cause) from cause
        file = File(temporary, fd)
        try:
            made = os.fstat(fd)
            # Owner before mode: fchown clears the setuid and setgid bits.
            if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
                os.fchown(fd, before.st_uid, before.st_gid)
            os.fchmod(fd, S_IMODE(before.st_mode))
            file.pwrite(data, 0)
            file.sync()
        except OSError as cause:
            self.remove(temporary)
            raise disk_error("cannot keep owner and mode of", path, cause) from cause
        except StoreError:
            self.remove(temporary)
            raise
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_dir(path.parent)

    def read_replaced(self, path: Path) -> bytes:
        """Read a file that `replace_file` writes; the version read is durable on return.

        The process that wrote it may have been killed between the rename and the sync of the name. Without a sync here,
        a power cut could take this version away and keep data that rely on it.
        """
        data = self.read_file(path)
        self.sync_dir(path.parent)
        return data

    def free_name(self, path: Path) -> Path:
        """The path if nothing is there, else the first free ``NAME.number``."""
        number = 0
        target = path
        while self.exists(target):
            number += 1
            target = path.with_name(f"{path.name}.{number}")
        return target

    def move_aside(self, path: Path) -> Path:
        """Rename an unknown file to a free ``NAME.aside[.number]``; returns that path."""
        target = self.free_name(path.with_name(f"{path.name}.aside"))
        self.rename(path, target)
        self.sync_dir(path.parent)
        return target

    def lock(self, path: Path) -> Callable[[], None]:
        """Take the exclusive lock of a store directory, or raise `StoreLockedError`; returns a function that unlocks.

        It is a POSIX record lock on byte 0 of ``path``, like Apache RocketMQ's, so that its broker and ours exclude
        each other. Such a lock does not exclude the same process, so a registry does that.
        """
        return _lock(path)

    def free_bytes(self, path: Path) -> tuple[int, int]:
        """(bytes free for us, all bytes except those reserved for root) of the file system of ``path``.

        So 1 - free / all is the used share as `df` and Apache's broker compute it.

        Raises StoreError.
        """
        try:
            stat = os.statvfs(path)
        except OSError as cause:
            raise disk_error("cannot stat file system of", path, cause) from cause
        kept_blocks = stat.f_bfree - stat.f_bavail
        return stat.f_bavail * stat.f_frsize, (stat.f_blocks - kept_blocks) * stat.f_frsize

    def mtime_ms(self, path: Path) -> int:
        """Time of the last change, epoch milliseconds. Raises StoreError."""
        try:
            return path.stat().st_mtime_ns // 1_000_000
        except OSError as cause:
            raise disk_error("cannot stat", path, cause) from cause

    def file_size(self, path: Path) -> int:
        """Size in bytes. Raises StoreError."""
        try:
            return path.stat().st_size
        except OSError as cause:
            raise disk_error("cannot stat", path, cause) from cause


_held_lock = threading.Lock()
_held: set[tuple[int, int]] = set()  # (device, inode) of the lock files that this process holds


def _lock(path: Path) -> Callable[[], None]:
    with _held_lock:
        try:
            if path.exists():
                stat = path.stat()
                if (stat.st_dev, stat.st_ino) in _held:
                    # Not opened: closing any descriptor of it would drop the lock that this process holds.
                    raise StoreLockedError(f"{path} is locked: the store is already open in this process")
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as cause:
            raise disk_error("cannot open lock file", path, cause) from cause
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            if os.fstat(fd).st_size == 0:
                os.pwrite(fd, _LOCK_TEXT, 0)
        except OSError as cause:
            os.close(fd)
            if cause.errno in (errno.EACCES, errno.EAGAIN):
                raise StoreLockedError(
                    f"{path} is locked: another process has this store open; stop that one, or choose another directory"
                ) from cause
            raise disk_error("cannot lock", path, cause) from cause
        stat = os.fstat(fd)
        key = (stat.st_dev, stat.st_ino)
        _held.add(key)

    def release() -> None:
        with _held_lock:
            if key in _held:
                _held.discard(key)
                with contextlib.suppress(OSError):
                    os.close(fd)

    return release
