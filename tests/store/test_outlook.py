"""What comes due before a time, by the due times of pages: against a plain count, with pages that are damaged."""

from __future__ import annotations

import numpy as np
import pytest

from remoting.layout import FILE_HEADER_BYTES, PAGE_HEAD_BYTES
from store.disk.errors import StoreCorruptError
from store.spill.rows.model import DUE_MAX
from store.spill.rows.page_cache import RunPageCache
from store.spill.runs.run import Run
from tests.store.spill_world import FOREVER, SpillWorld, tiny_options

DUE_BYTES = 8
WRONG = (1 << 60, 0, 1 << 63, (1 << 64) - 1)
"""Due times, as 8 bytes, that a page's first one may be turned into."""


def runs_of(seed: int) -> tuple[SpillWorld, list[Run]]:
    """A store with runs, and an index if the seed is odd, of several pages each."""
    world = SpillWorld(seed, tiny_options(segment_bytes=4_000, runs_max=8))
    for _ in range(30):
        world.accept(4, far=True)
        world.publish_all()
        world.sync()
        world.take_checkpoint()
        world.spill(30 if seed % 2 else 300)
    runs = [source for source in world.store.outlook._state.sources.values() if isinstance(source, Run)]
    return world, [run for run in runs if run.live and run.shape.pages > 3]


def dues_of(world: SpillWorld) -> list[int]:
    return list(world.store.scan((-1, 0), FOREVER, 1 << 20).dues)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_page_moves_no_bar_of_the_others(seed: int, wrong: int) -> None:
    """Its records are still there: the page is made again from them."""
    world, runs = runs_of(seed)
    assert runs
    dues = dues_of(world)
    bounds = [*sorted({due + more for due in dues for more in (0, 1)}), DUE_MAX - 1]
    expected = [sum(due < bound for due in dues) for bound in bounds]
    for run in runs:
        number = run.shape.pages // 2
        at = FILE_HEADER_BYTES + number * run.shape.page_bytes + PAGE_HEAD_BYTES
        run.file.pwrite(wrong.to_bytes(DUE_BYTES, "little"), at)
        with pytest.raises(StoreCorruptError):
            run._read_page(number)
        run.twin(RunPageCache(1 << 20)).page(number)
        run.first_dues = None
    below, exact = world.store.outlook.counts_below(np.array(bounds, np.int64))
    assert (below.tolist(), exact) == (expected, True)
