"""Whose files are: a store is its owner's alone, and a file of the user's stays what it is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from broker.access.acl import Acl
from broker.config.broker_config import BrokerConfig
from broker.config.logs import start_logging
from broker.live_config import save_changes
from store.disk.errors import StoreError
from store.disk.files import Files
from tests.broker.core_rig import Rig
from tests.broker.test_acl import RULES


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_store_is_for_its_owner_alone(tmp_path, caplog):
    root = tmp_path / "made" / "store"
    stop = start_logging(BrokerConfig(root))
    try:
        rig = Rig(root)
        rig.client().send("T")
        rig.core.save_offsets()
        rig.close()
    finally:
        stop()
    found = [root.parent, root, *root.rglob("*")]
    loose = {str(path): oct(mode(path)) for path in found if mode(path) != (0o700 if path.is_dir() else 0o600)}
    assert len(found) > 15 and (root / "logs" / "broker.log") in found
    assert not loose
    assert "users other than its owner" not in caplog.text


def test_a_store_that_is_open_to_others_is_left_and_warned_of(tmp_path, caplog):
    root = tmp_path / "store"
    root.mkdir(0o755)
    Rig(root).close()
    assert mode(root) == 0o755
    assert f"{root} can be opened by users other than its owner (mode bits 055)" in caplog.text
    assert f"chmod -R go= {root}" in caplog.text


def test_a_changed_configuration_keeps_mode_and_link(tmp_path):
    real = tmp_path / "etc" / "broker.conf"
    real.parent.mkdir()
    real.write_bytes(b"fileReservedTime=48\n")
    link = tmp_path / "broker.conf"
    link.symlink_to(real)
    for bits in (0o600, 0o640, 0o444):
        real.chmod(bits)
        save_changes(Files(), link, {"fileReservedTime": str(bits)})
        assert link.is_symlink() and link.resolve() == real
        assert mode(real) == bits
        assert real.read_bytes() == b"fileReservedTime=%d\n" % bits
    assert sorted(path.name for path in real.parent.iterdir()) == ["broker.conf"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_changed_configuration_keeps_its_owner(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_bytes(b"a=1\n")
    os.chown(path, 12345, 54321)
    save_changes(Files(), path, {"a": "2"})
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 54321)


def test_a_configuration_whose_owner_cannot_be_kept_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "broker.conf"
    path.write_bytes(b"a=1\n")
    path.chmod(0o600)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("store.disk.files.os.fchmod", refuse)
    with pytest.raises(StoreError, match=r"cannot keep owner and mode of .*broker\.conf"):
        save_changes(Files(), path, {"a": "2"})
    assert path.read_bytes() == b"a=1\n" and list(tmp_path.iterdir()) == [path]


def test_what_lies_at_the_temporary_name_is_not_written_through(tmp_path):
    path, other = tmp_path / "broker.conf", tmp_path / "other"
    path.write_bytes(b"a=1\n")
    other.write_bytes(b"other\n")
    path.with_name("broker.conf.tmp").symlink_to(other)
    save_changes(Files(), path, {"a": "2"})
    assert other.read_bytes() == b"other\n" and path.read_bytes() == b"a=2\n"


@pytest.mark.parametrize(("bits", "warned"), [(0o644, True), (0o604, True), (0o640, False), (0o600, False)])
def test_rules_that_everybody_may_read_are_warned_of(tmp_path, caplog, bits, warned):
    path = tmp_path / "plain_acl.yml"
    path.write_bytes(RULES)
    path.chmod(bits)
    Acl(Files(), path)
    assert (f"{path} has secret keys in it and is open to all users: run chmod o= {path}" in caplog.text) is warned


def test_rules_may_lie_where_nothing_can_be_written(tmp_path, monkeypatch):
    """As on a read-only mount: whoever opens a file to write is told EROFS."""
    path = tmp_path / "plain_acl.yml"
    path.write_bytes(RULES)
    real_open = os.open

    def read_only(name: object, flags: int, *more: object, **named: object) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(name))
        return real_open(name, flags, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("store.disk.files.os.open", read_only)
    acl = Acl(Files(), path)
    assert not acl.reload()
