"""Who follows which shard: each has one standby, the member that would get it if its owner vanished."""

from __future__ import annotations

import pytest

from service.running.service import standbys_of
from timewheel_client.consuming.allocation import allocate_evenly


@pytest.mark.parametrize("members", range(1, 6))
@pytest.mark.parametrize("count", [1, 4, 7, 16])
def test_each_shard_has_the_standby_that_gets_it(members: int, count: int) -> None:
    names = [f"m{number}" for number in range(members)]
    shards = [("T", "b", number) for number in range(count)]
    owners = {shard: name for name in names for shard in allocate_evenly(name, names, shards)}
    standbys = {name: standbys_of(name, names, shards) for name in names}
    for shard, owner in owners.items():
        left = [name for name in names if name != owner]
        heirs = [name for name in left if shard in allocate_evenly(name, left, shards)]
        assert [name for name in names if shard in standbys[name]] == heirs
