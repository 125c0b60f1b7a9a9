"""All systems by name: the values of ``--peers``, and the configurations of each system."""

from __future__ import annotations

from bench.peers.others import BEANSTALKD, NAIVE, NATS, REDIS
from bench.peers.rocketmq import APACHE, APACHE_POP_VARIANTS, APACHE_VARIANTS, OURS
from bench.peers.system import System

__all__ = ["OURS", "PEERS", "POP_VARIANTS", "VARIANTS"]

PEERS: dict[str, System] = {
    "apache": APACHE,
    "nats": NATS,
    "redis": REDIS,
    "beanstalkd": BEANSTALKD,
    "naive": NAIVE,
}
# Configurations that differ only in how late they deliver.
VARIANTS: dict[str, tuple[System, ...]] = {"apache": APACHE_VARIANTS}
# Configurations that differ in how they keep what is popped.
POP_VARIANTS: dict[str, tuple[System, ...]] = {"apache": APACHE_POP_VARIANTS}
