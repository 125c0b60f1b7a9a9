"""What ``timewheel drain`` says when the shard goes out, or the drain is undone, at any moment of its looks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.cli import drain
from broker.shards.layout import Layout
from store.disk.files import Files


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store with two shards, whose supervisor runs."""
    Layout(Files(), tmp_path).choose(2, "b")
    unlock = Files().lock(tmp_path / "shards" / "lock")
    yield tmp_path
    unlock()


def drained(store: Path) -> Result:
    return CliRunner().invoke(drain.drain_command, ["1", "--store", str(store)])


class Looks:
    """A layout as the command reads it; ``then`` comes right behind the second look, its first while it waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(drain, "Layout", self.look)
        monkeypatch.setattr(drain.time, "sleep", lambda _: None)

    def then(self, layout: Layout) -> None:
        raise NotImplementedError

    def look(self, files: Files, store: Path) -> Layout:
        layout = Layout(files, store)
        self.count += 1
        if self.count == 2:
            self.then(Layout(files, store))
        return layout


def test_a_shard_that_goes_out_behind_a_look_was_not_undone(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class GoesOut(Looks):
        def then(self, layout: Layout) -> None:
            layout.take_out(1)
            Files().remove(layout.drain_mark(1))

    looks = GoesOut(monkeypatch)
    result = drained(store)
    assert (result.exit_code, looks.count) == (0, 3), result.output
    assert f"shard 1 is out; its directory {store / 'shards' / '1'} stays" in result.output


def test_a_drain_that_is_undone_behind_a_look_is_said_to_be(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class IsUndone(Looks):
        def then(self, layout: Layout) -> None:
            Files().remove(layout.drain_mark(1))

    looks = IsUndone(monkeypatch)
    result = drained(store)
    assert (result.exit_code, looks.count) == (1, 3), result.output
    assert "the drain of shard 1 was undone" in result.output
