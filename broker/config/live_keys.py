"""Which settings can be changed while the broker runs."""

from __future__ import annotations

from collections.abc import Collection

from broker.config.apache_keys import NO_EFFECT_KEYS
from broker.config.broker_config import BrokerConfig
from broker.config.config_keys import USED_KEYS, ConfigError, shown

__all__ = ["BOUND_KEYS", "LIVE_KEYS", "PULL_KEYS", "RETENTION_KEYS", "TOPIC_KEYS", "check_change"]

RETENTION_KEYS = frozenset(
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
PULL_KEYS = frozenset(
    (
        "maxTransferCountOnMessageInMemory",
        "maxTransferBytesOnMessageInMemory",
        "maxTransferCountOnMessageInDisk",
        "maxTransferBytesOnMessageInDisk",
    )
)
TOPIC_KEYS = frozenset(("autoCreateTopicEnable", "defaultTopicQueueNums"))
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

BOUND_KEYS = frozenset(("maxAutoCreateTopicNum", "maxAutoCreateSubscriptionGroupNum", "maxConsumerOffsetNum"))

LIVE_KEYS = (
    RETENTION_KEYS
    | PULL_KEYS
    | TOPIC_KEYS
    | _READ_EACH_TIME
    | BOUND_KEYS
    | frozenset(("autoCreateSubscriptionGroup", "defaultQueryMaxNum", "logLevel"))
)
"""The keys that can be changed while the broker runs."""


def check_change(config: BrokerConfig, name: str, text: str, plugin_keys: Collection[str] = ()) -> None:
    """Raise ConfigError, with the key, unless it may be given this value now.

    ``plugin_keys`` are those that plug-ins say they read anew each time (`LiveKeysPlugin`); a key that has
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
