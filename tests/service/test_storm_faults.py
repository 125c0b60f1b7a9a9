"""The faults of a storm: how many of them are cuts, and that each says how many there were so far."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tests.service import process_storm
from tests.service.process_cluster import RealCluster
from tests.service.process_storm import Storm, share


def storm_with(wires: int, cuts: float, monkeypatch: pytest.MonkeyPatch) -> Storm:
    for name in ("let_pass", "stopped", "continued"):
        monkeypatch.setattr(process_storm, name, lambda *_: None)
    wire = SimpleNamespace(cut=lambda: None, block=lambda *_, **__: None)
    child = SimpleNamespace(running=lambda: True, kill=lambda: None)
    cluster = SimpleNamespace(
        wires=[wire] * wires,
        brokers=[SimpleNamespace(port=1, kill=lambda: None, start=lambda _: None)],
        services=[child] * process_storm.INSTANCES,
        names=None,
        service=lambda *_: child,
    )
    return Storm(cast(RealCluster, cluster), seed=1, rate=1, cuts=cuts)


@pytest.mark.parametrize(("wires", "cuts", "at_least", "at_most"), [(0, 0.5, 0, 0), (2, 0.25, 0.2, 0.3), (2, 1, 1, 1)])
def test_the_share_of_cuts(
    wires: int, cuts: float, at_least: float, at_most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm = storm_with(wires, cuts, monkeypatch)
    for _ in range(1000):
        storm._one_fault()
    found = sum(count for name, count in storm.faults.items() if name.startswith("connections"))
    assert storm.faults.total() == 1000 and at_least <= found / 1000 <= at_most


def test_each_fault_says_the_figures_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    storm = storm_with(2, 1, monkeypatch)
    storm.failed_sends = 3
    storm.ledger.planned(0, 5)
    storm.ledger.acknowledged(0)
    for _ in range(2):
        storm._fault()
    last = capsys.readouterr().out.splitlines()[-1]
    assert sum(storm.faults.values()) == 2 and last.endswith("1 acknowledged, 3 not")
    assert all(f"{name} {count}" in last.partition("so far")[2] for name, count in storm.faults.items())


def test_a_share_is_at_most_the_whole() -> None:
    assert share("0.25") == 0.25
    for text in ("1.1", "-1", "half", "nan"):
        with pytest.raises(ValueError):
            share(text)
