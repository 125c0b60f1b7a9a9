"""A soak of seconds: the same as ``python -m tests.support.fault_soak``, which runs for half an hour."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fault_soak import Sample, Soak

RSS_MAX_BYTES = 256 << 20
FILES_MAX = 300


@pytest.mark.process
@pytest.mark.alone
def test_a_mixed_load_keeps_the_ledger_and_the_process_small(tmp_path: Path) -> None:
    soak = Soak(tmp_path, seed=3, rate=400, due_to_ms=4_000)
    result = soak.run(12, every=1, consumer_seconds=4)
    text = soak.write()
    assert not result.wrong, text
    assert result.counts["A"] > 500, text
    assert result.counts["received"] > 500, text
    assert result.counts["recalled"] > 10, text
    assert result.counts["transactions"] > 10, text
    assert result.counts["visitors"] > 10, text
    assert max(sample.rss_bytes for sample in result.samples) < RSS_MAX_BYTES, text
    assert max(sample.files for sample in result.samples) < FILES_MAX, text
    assert json.loads((tmp_path / "soak.json").read_text())["counts"]["lost"] == 0


def _soak(tmp_path: Path, rss_growth: int, files_growth: int) -> Soak:
    """Forty samples, five seconds apart, that grow by so much each; the first ten are wild."""
    soak = Soak(tmp_path)
    for number in range(40):
        wild = 10 << 20 if number < 10 else 0
        rss = (50 << 20) + number * rss_growth + wild * (number % 2)
        soak.result.samples.append(Sample(number * 5.0, rss, 40 + number * files_growth, 10, 5.0, 1 << 20, 3, 100))
    return soak


def test_flat_is_flat_whatever_the_warm_up_was(tmp_path: Path) -> None:
    soak = _soak(tmp_path, 1000, 0)
    soak.judge_growth(50)
    assert soak.result.wrong == []
    assert soak.result.figures["rss_bytes growth an hour"] == 1000 * 720
    assert soak.result.figures["minutes"] == pytest.approx(3.2, abs=0.1)


def test_growth_is_found(tmp_path: Path) -> None:
    soak = _soak(tmp_path, 1 << 20, 1)
    soak.judge_growth(50)
    assert [text.partition(" ")[0] for text in soak.result.wrong] == ["rss_bytes", "files"]


def test_too_few_samples_prove_nothing(tmp_path: Path) -> None:
    soak = _soak(tmp_path, 0, 0)
    soak.judge_growth(190)
    assert "samples after the warm-up" in soak.result.wrong[0]
