"""The settings that a shard is started with: those of the whole, and its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.config.broker_config import BrokerConfig
from broker.config.key import ConfigError
from broker.shards.layout import shard_name

__all__ = ["PORTS_APART", "Start", "check_ports", "own_settings", "scrape_list"]

PORTS_APART = 10
"""Distance between the ports of two shards. Each also needs the port 2 below (VIP); routes name the one above (HA)."""


class Start:
    """The arguments of the supervisor: the file, options and settings of the command line.

    ==============  ======================================================
    ``file``        Path of the configuration file, None without one
    ``options``     dict of str to str, options as configuration keys
    ``settings``    dict of str to str, single settings
    ==============  ======================================================
    """

    __slots__ = ("file", "options", "settings")

    def __init__(self, file: Path | None, options: Mapping[str, str], settings: Mapping[str, str]) -> None:
        self.file = file
        self.options = dict(options)
        self.settings = dict(settings)


def _ports(config: BrokerConfig) -> dict[str, int]:
    """The ports of shard 0, by the key that sets each; the name server's is the supervisor's."""
    ports = {"listenPort": config.listen_port}
    if config.http_listen is not None:
        ports["httpListen"] = config.http_listen[1]
    if config.metrics_listen is not None:
        ports["metricsPromExporterPort"] = config.metrics_listen[1]
    return ports


def check_ports(config: BrokerConfig, indexes: list[int]) -> None:
    """Raise ConfigError if the shards' ports do not fit, or a setting cannot be one of several shards."""
    for key, port in _ports(config).items():
        if port and port + PORTS_APART * indexes[-1] + 1 > 65535:
            raise ConfigError(
                f"{key}={config.get_text(key)}: shard {indexes[-1]} would listen at "
                f"{port + PORTS_APART * indexes[-1]}, and 65535 is the last port"
            )
    if "storePathCommitLog" in config.values:
        raise ConfigError("storePathCommitLog cannot be set with --shards: each shard's CommitLog is in its own store")


def scrape_list(config: BrokerConfig, indexes: list[int]) -> list[dict[str, Any]] | None:
    """List the metrics ports of all shards in the form of Prometheus's ``file_sd_configs``; None without metrics.

    The labels say the shard, since all have the same host.
    """
    listens = config.metrics_listen or config.http_listen
    if listens is None or not listens[1]:
        return None
    host = config.advertised if listens[0] in ("0.0.0.0", "::") else listens[0]
    return [
        {
            "labels": {"broker": shard_name(config.broker_name, index), "cluster": config.cluster_name},
            "targets": [f"{host}:{listens[1] + PORTS_APART * index}"],
        }
        for index in indexes
    ]


def own_settings(config: BrokerConfig, index: int, directory: Path, port: int = 0) -> dict[str, str]:
    """The settings that are a shard's own.

    Args:
        config: The configuration of the whole.
        index, directory: The shard, and its store directory.
        port: Where it has listened before, if it chose its port itself.
    """
    own = {
        "storePathRootDir": str(directory),
        "brokerName": shard_name(config.broker_name, index),
        "aclFile": str(config.acl_file),
    }
    for key, first in _ports(config).items():
        own[key] = str(first and first + PORTS_APART * index)  # 0 stays 0, which means any free port
    if port:
        own["listenPort"] = str(port)
    if config.http_listen is not None:
        own["httpListen"] = f"{config.http_listen[0]}:{own['httpListen']}"
    if not config.listen_port:
        own["vipChannelEnable"] = "false"  # its port is not chosen, so neither is the VIP port
    if config.namesrv_listen is not None:
        own |= {"namesrvListen": "", "namesrvAddr": ""}  # it registers with the supervisor
    return own
