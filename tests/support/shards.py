"""A broker with shards as real processes: which process is which, and what each knows."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

from tests.support.ours import OurBroker
from tests.support.wait import wait_until
from tests.support.wire import Wire, WireError

__all__ = ["ShardedBroker"]

SECONDS = 90


class ShardedBroker(OurBroker):
    """`timewheel broker --shards N`."""

    def __init__(
        self, folder: Path, shards: int = 2, settings: dict[str, str] | None = None, namesrv: str | None = None
    ) -> None:
        super().__init__(folder, settings, namesrv, shards=shards)

    @property
    def log_text(self) -> str:
        """The one log."""
        return (self.store / "logs" / "broker.log").read_text(errors="replace")

    def name(self, index: int) -> str:
        """A shard's broker name."""
        return f"{self.settings.get('brokerName', 'broker-a')}-{index}"

    def pid(self, index: int) -> int:
        """The process of a shard, as of its last start."""
        return int(re.findall(rf"{self.name(index)} is process (\d+)", self.log_text)[-1])

    def serving_count(self, index: int) -> int:
        """How often a shard has begun to serve."""
        return len(re.findall(rf"{self.name(index)} serves at port", self.log_text))

    def kill_shard(self, index: int) -> None:
        """SIGKILL to one of them."""
        os.kill(self.pid(index), signal.SIGKILL)

    def wait_served(self, index: int, count: int) -> None:
        """Wait until a shard has begun to serve so often."""
        wait_until(lambda: self.serving_count(index) >= count, SECONDS, f"start {count} of shard {index}")

    def topic(self, index: int, name: str) -> dict[str, Any] | None:
        """GET_TOPIC_CONFIG at a shard; None for an unknown topic."""
        with Wire(self.addresses[index]) as wire:
            try:
                document: dict[str, Any] = json.loads(wire.ask(351, {"topic": name})[1])
            except WireError as error:
                assert error.code == 17, error
                return None
            return document

    def group(self, index: int, name: str) -> dict[str, Any] | None:
        """The entry of a group in GET_ALL_SUBSCRIPTIONGROUP_CONFIG at a shard."""
        with Wire(self.addresses[index]) as wire:
            table: dict[str, Any] = json.loads(wire.ask(201, {})[1])["subscriptionGroupTable"]
            return table.get(name)

    def setting(self, index: int, name: str) -> str:
        """The value of a setting at a shard."""
        with Wire(self.addresses[index]) as wire:
            lines = wire.ask(26, {})[1].decode().splitlines()
        return next(line.partition("=")[2] for line in lines if line.startswith(f"{name}="))

    def brokers_of(self, topic: str) -> dict[str, int]:
        """The route of a topic: broker names with their permission."""
        with Wire(self.namesrv) as wire:
            try:
                route = json.loads(wire.ask(105, {"topic": topic, "acceptStandardJsonOnly": "true"})[1])
            except WireError:
                return {}
        return {queue["brokerName"]: queue["perm"] for queue in route["queueDatas"]}
