"""The settings of a store, with the names and defaults of Apache's broker.conf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from store.disk.errors import StoreError

__all__ = ["DEFAULT_DELAY_LEVELS", "StoreOptions", "parse_delay_levels"]

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Read ``messageDelayLevel``: delays in ms, level 1 first. Raises `StoreError` for what cannot be read."""
    levels = []
    for word in text.split():
        number, unit = word[:-1], word[-1:]
        if unit not in _UNIT_MS or not (number.isascii() and number.isdigit()):
            raise StoreError(f"messageDelayLevel: {word!r} is no number followed by s, m, h or d, in {text!r}")
        levels.append(int(number) * _UNIT_MS[unit])
    if not levels:
        raise StoreError("messageDelayLevel is empty")
    return tuple(levels)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings of a `store.message_store.MessageStore`.

    ==============================  ==============================  ==========================================
    ``commit_log_segment_bytes``    mappedFileSizeCommitLog         must be as when the store was made
    ``consume_queue_segment_bytes`` mappedFileSizeConsumeQueue      the same; rounded up to entries of 20 bytes
    ``max_message_bytes``           maxMessageSize                  largest body; a record may have 64 KiB more
    ``flush_sync``                  flushDiskType=SYNC_FLUSH        whether replies wait for a sync
    ``flush_interval_ms``           flushIntervalCommitLog          ASYNC_FLUSH: longest time without a sync
    ``delay_levels_ms``             messageDelayLevel               delay of level 1, 2, …
    ``file_reserved_hours``         fileReservedTime                how long a segment is kept
    ``delete_when``                 deleteWhen                      hours of the day in which segments expire
    ``disk_max_used_ratio``         diskMaxUsedSpaceRatio           above it they expire at any hour
    ``disk_clean_forcibly_ratio``   diskSpaceCleanForciblyRatio     above it segments go before their time
    ``disk_warning_ratio``          diskSpaceWarningLevelRatio      above it nothing is accepted
    ``clean_file_forcibly``         cleanFileForciblyEnable         whether segments may go before their time
    ``delete_batch_max``            deleteFileBatchMax              segments that one pass may remove
    ``timer_precision_ms``          timerPrecisionMs                Apache's own timer, to find what it holds
    ==============================  ==============================  ==========================================
    """

    commit_log_segment_bytes: int = 1 << 30
    consume_queue_segment_bytes: int = 6_000_000
    max_message_bytes: int = 4 << 20
    flush_sync: bool = False
    flush_interval_ms: int = 500
    delay_levels_ms: tuple[int, ...] = parse_delay_levels(DEFAULT_DELAY_LEVELS)
    file_reserved_hours: int = 72
    delete_when: tuple[int, ...] = (4,)
    disk_max_used_ratio: float = 0.75
    disk_clean_forcibly_ratio: float = 0.85
    disk_warning_ratio: float = 0.90
    clean_file_forcibly: bool = True
    delete_batch_max: int = 10
    timer_precision_ms: int = 1000
    commit_log_path: str = ""

    @property
    def max_record_bytes(self) -> int:
        """The largest record that is accepted."""
        return self.max_message_bytes + (64 << 10)

    @classmethod
    def from_config(cls, values: Mapping[str, str]) -> StoreOptions:
        """Read the keys of a broker.conf; missing ones have Apache's defaults. Raises `StoreError` with the value."""
        default = cls()
        flush = values.get("flushDiskType", "ASYNC_FLUSH").strip()
        if flush not in ("SYNC_FLUSH", "ASYNC_FLUSH"):
            raise StoreError(f"flushDiskType={flush!r} is neither SYNC_FLUSH nor ASYNC_FLUSH")
        entry_file = _integer(values, "mappedFileSizeConsumeQueue", default.consume_queue_segment_bytes, 20)
        return cls(
            commit_log_segment_bytes=_integer(
                values, "mappedFileSizeCommitLog", default.commit_log_segment_bytes, 4096
            ),
            consume_queue_segment_bytes=-(-entry_file // 20) * 20,
            max_message_bytes=_integer(values, "maxMessageSize", default.max_message_bytes, 1),
            flush_sync=flush == "SYNC_FLUSH",
            flush_interval_ms=_integer(values, "flushIntervalCommitLog", default.flush_interval_ms, 1),
            delay_levels_ms=parse_delay_levels(values.get("messageDelayLevel", DEFAULT_DELAY_LEVELS)),
            file_reserved_hours=_integer(values, "fileReservedTime", default.file_reserved_hours, 0),
            delete_when=_hours(values.get("deleteWhen", "04")),
            disk_max_used_ratio=_percent(values, "diskMaxUsedSpaceRatio", 75, 10, 95),
            disk_clean_forcibly_ratio=_percent(values, "diskSpaceCleanForciblyRatio", 85, 30, 99),
            disk_warning_ratio=_percent(values, "diskSpaceWarningLevelRatio", 90, 35, 100),
            clean_file_forcibly=_flag(values, "cleanFileForciblyEnable", True),
            delete_batch_max=_integer(values, "deleteFileBatchMax", default.delete_batch_max, 1),
            timer_precision_ms=_timer_precision(_integer(values, "timerPrecisionMs", 1000, 1)),
            commit_log_path=values.get("storePathCommitLog", "").strip(),
        )


def _integer(values: Mapping[str, str], key: str, default: int, least: int) -> int:
    text = values.get(key, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise StoreError(f"{key}={text!r} is no whole number of at least {least}")
    return int(text)


def _percent(values: Mapping[str, str], key: str, default: int, low: int, high: int) -> float:
    """Apache takes percent (``75``); a ratio (``0.75``) is understood too."""
    text = values.get(key, "").strip()
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1
    if 0 < number <= 1:
        number *= 100
    if not 0 < number <= 100:
        raise StoreError(f"{key}={text!r} is no percentage")
    return min(max(number, low), high) / 100


def _flag(values: Mapping[str, str], key: str, default: bool) -> bool:
    text = values.get(key, "").strip().lower()
    if text not in ("", "true", "false"):
        raise StoreError(f"{key}={text!r} is neither true nor false")
    return text == "true" if text else default


def _hours(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.replace(",", ";").split(";") if word.strip()]
    if not all(word.isascii() and word.isdigit() and int(word) < 24 for word in words):
        raise StoreError(f"deleteWhen={text!r} is no list of hours (0 to 23) joined by ';'")
    return tuple(int(word) for word in words)


def _timer_precision(ms: int) -> int:
    return 100 if ms < 200 else 200 if ms < 500 else 500 if ms < 1000 else 1000
