"""The plug-in's options, read from the broker's configuration."""

from __future__ import annotations

from collections.abc import Mapping

from store.disk.errors import StoreFormatError
from store.spill.rows.model import SpillOptions

__all__ = ["config_number", "spill_options"]


def config_number(config: Mapping[str, str], key: str, default: int) -> int:
    """Read a whole number; ``default`` if the key is missing or empty. Raises StoreFormatError for any other text."""
    text = config.get(key, "").strip()
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise StoreFormatError(f"{key} = {text!r} is not a whole number") from None


def spill_options(config: Mapping[str, str]) -> SpillOptions:
    """Read the options of the spill store: ``segment_bytes`` from ``timewheelSegmentBytes``, and so on.

    Raises StoreFormatError.
    """
    defaults = SpillOptions()
    return SpillOptions(
        **{
            name: config_number(config, "timewheel" + name.title().replace("_", ""), getattr(defaults, name))
            for name in SpillOptions.__slots__
        }
    )
