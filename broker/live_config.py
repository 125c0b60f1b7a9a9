"""Changes of the configuration while the broker runs (UPDATE_BROKER_CONFIG): what takes effect at once, and what lasts.

Apache's broker accepts any key, changes a field of an object, and rewrites its whole configuration file; whether
anything reads the field again is another matter. Here a key either takes effect at once or is refused by its name.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from broker.apache_keys import NO_EFFECT_KEYS
from broker.config_keys import USED_KEYS, ConfigError, shown
from broker.properties_file import update_properties_file
from store.options import StoreOptions

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.core import BrokerCore
    from store.files import Files

__all__ = ["LIVE_KEYS", "apply_changes", "check_change", "save_changes", "take_over"]

_LOG = logging.getLogger(__name__)

_RETENTION = frozenset(
    (
        "fileReservedTime",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "deleteFileBatchMax",
        "cleanFileForciblyEnable",
    )
)
_PULLS = frozenset(
    (
        "maxTransferCountOnMessageInMemory",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInDisk",
        "maxTransferBytesOnMessageInDisk",
    )
)
_TOPICS = frozenset(("autoCreateTopicEnable", "defaultTopicQueueNums"))
_READ_EACH_TIME = frozenset(
    (
        "brokerPermission",
        "enablePropertyFilter",
        "longPollingEnable",
        "notifyConsumerIdsChangedEnable",
        "rejectTransactionMessage",
        "transactionTimeOut",
        "transactionCheckMax",
        "transactionCheckInterval",
        "storeReplyMessageEnable",
        "maxUndecidedTransactionNum",
    )
)

_BOUNDS = frozenset(("maxAutoCreateTopicNum", "maxAutoCreateSubscriptionGroupNum", "maxConsumerOffsetNum"))

LIVE_KEYS = (
    _RETENTION
    | _PULLS
    | _TOPICS
    | _READ_EACH_TIME
    | _BOUNDS
    | frozenset(("autoCreateSubscriptionGroup", "defaultQueryMaxNum", "logLevel"))
)
"""The keys that can be changed while the broker runs."""


def check_change(config: BrokerConfig, name: str, text: str, plugin_keys: Collection[str] = ()) -> None:
    """Raise ConfigError, with the key, unless it may be given this value now.

    ``plugin_keys`` are those that plug-ins say they read anew each time (their attribute ``live_keys``); a key that has
    no effect here may have any value.
    """
    key = USED_KEYS.get(name)
    if key is None:
        if name not in NO_EFFECT_KEYS and name not in plugin_keys:
            raise ConfigError(f"{name}: no such key")
        return
    text = key.validate(text)
    if name not in LIVE_KEYS and text != config.get_text(name):
        raise ConfigError(
            f"{shown(name, text)}: read at start only, put it into the broker's configuration and start again"
        )


def take_over(core: BrokerCore, fresh: BrokerConfig) -> list[str]:
    """Let a configuration that was read anew count, as far as its keys can be changed now; the keys that have changed.

    What is read at start only is logged and stays. Runs in the network loop; raises StoreError if topics cannot be
    written.
    """
    config = core.config
    differing = [name for name in USED_KEYS if config.get_text(name) != fresh.get_text(name)]
    changed = [name for name in differing if name in LIVE_KEYS]
    for name in differing:
        if name in LIVE_KEYS:
            _LOG.warning("%s from now on", shown(name, fresh.get_text(name)))
            config.set_value(name, fresh.get_text(name))
        else:
            _LOG.warning("%s counts from the next start on", shown(name, fresh.get_text(name)))
    new = sorted({*fresh.unknown} - {*config.unknown})
    if new:
        _LOG.warning("unknown settings (typing mistakes?): %s", ", ".join(new))
    if changed:
        core.config_changed(changed)
    return changed


def save_changes(files: Files, path: Path, changes: Mapping[str, str]) -> None:
    """Write changed values into the configuration file that was read at start; the rest of it stays as it is.

    So do its mode, its owner, and a symbolic link to it. Raises OSError or StoreError, and the file is as it was.
    """
    files.replace_kept(path, update_properties_file(path.read_bytes(), changes))


def apply_changes(core: BrokerCore, keys: Iterable[str]) -> None:
    """Let changed values take effect. Runs in the network loop; raises StoreError if topics cannot be written."""
    config, changed = core.config, frozenset(keys)
    if changed & _RETENTION:
        core.store.retention.set_options(StoreOptions.from_config(config.values))
    if changed & _PULLS:
        core.processors.pull.set_limits(core.processors.pull_limits())
    if changed & _TOPICS:
        enabled, queues = config.get_bool("autoCreateTopicEnable"), config.get_int("defaultTopicQueueNums")
        core.topics.set_auto_create(enabled, queues)
    if changed & _BOUNDS:
        core.topics.auto_create_max = config.get_int("maxAutoCreateTopicNum")
        core.groups.auto_create_max = config.get_int("maxAutoCreateSubscriptionGroupNum")
        core.offsets.count_max = config.get_int("maxConsumerOffsetNum")
    if "autoCreateSubscriptionGroup" in changed:
        core.groups.set_auto_create(config.get_bool("autoCreateSubscriptionGroup"))
    if "defaultQueryMaxNum" in changed:
        core.processors.query.set_max_unique(config.get_int("defaultQueryMaxNum"))
    if "logLevel" in changed:
        logging.getLogger().setLevel(config.get_text("logLevel"))
