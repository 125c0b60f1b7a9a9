"""What `./run test` takes of what is random, as docs/testing.md says: computed where it is used, and compared."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ASK = """
import json
from tests.fuzz.test_fuzz import INPUTS_OF
from tests.simulation.test_simulation import FIXED_ROT, FRESH_ROT, FRESH_SECONDS, SEEDS, SHARE
from tests.support.damage_world import SEEDS_OF_THE_SUITE
from tests.support.examples import examples
print(json.dumps({
    "simulation": f"{SEEDS} fixed seeds, new ones for {FRESH_SECONDS:g} s, "
    f"a crash at {100 * SHARE:g} % of the disk calls",
    "garbage": f"{sum(INPUTS_OF.values()):,} inputs, always the same",
    "damage": f"{examples(4) * SEEDS_OF_THE_SUITE} stores",
    "bit rot": f"{len(FIXED_ROT)} fixed stories, {FRESH_ROT} new ones",
}))
"""


def share_of(option: str) -> str:
    """The part of the random examples that `./run test` takes, with or without ``--quick``."""
    found = re.findall(r"TIMEWHEEL_EXAMPLES:-([\d.]+)}", (ROOT / "run").read_text(encoding="utf-8"))
    quick, whole = found
    return quick if option else whole


def test_the_samples_of_the_suite_are_as_the_document_says() -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("TIMEWHEEL_ROT_SEEDS", "TIMEWHEEL_FIRST_SEED")}
    environment["TIMEWHEEL_EXAMPLES"] = share_of("")
    asked = subprocess.run(
        [sys.executable, "-c", ASK], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    text = (ROOT / "docs/testing.md").read_text(encoding="utf-8")
    for part, sample in json.loads(asked.stdout).items():
        assert f"| {part} | {sample} |" in text
    assert f"takes {share_of('')} of the numbers" in " ".join(text.split())
    assert f"`--quick` {share_of('--quick')} of them" in " ".join(text.split())
