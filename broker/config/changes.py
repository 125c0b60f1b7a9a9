"""Which settings may be changed while the broker runs."""

from __future__ import annotations

from collections.abc import Collection

from broker.config.apache_keys import NO_EFFECT_KEYS
from broker.config.broker_config import BrokerConfig
from broker.config.config_keys import USED_KEYS
from broker.config.key import ConfigError, shown

__all__ = ["check_change"]


def check_change(config: BrokerConfig, name: str, text: str, plugin_keys: Collection[str] = ()) -> None:
    """Raise ConfigError, with the key, unless it may be given this value now.

    ``plugin_keys`` are the keys that plug-ins read again at each use (`LiveKeysPlugin`); a key without effect here may
    have any value.
    """
    key = USED_KEYS.get(name)
    if key is None:
        if name not in NO_EFFECT_KEYS and name not in plugin_keys:
            raise ConfigError(f"{name}: no such key")
        return
    text = key.validate(text)
    if key.live is None and text != config.get_text(name):
        raise ConfigError(
            f"{shown(name, text)}: read at start only, put it into the broker's configuration and start again"
        )
