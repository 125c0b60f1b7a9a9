"""The limit of open files: each connection is one, and the store needs some hundreds beside them."""

from __future__ import annotations

import logging
import resource

__all__ = ["connections_max", "raise_limit", "raise_quietly"]

_LOG = logging.getLogger(__name__)

WANTED = 16_384
"""Fewer than that are worth a warning: Apache's clients keep two or three connections each."""
STORE_FILES = 1_024
"""The most open files of the store: ConsumeQueue files (`store.disk.file_cache`), segments, runs, log files."""
_UNLIMITED = 1 << 30


def raise_quietly() -> tuple[int, int]:
    """Raise the process's own limit as far as allowed; return the limit before and after."""
    soft, hard = (_number(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (_limit(hard), _limit(hard)))
        except (OSError, ValueError) as error:
            _LOG.warning("open files: the limit of %d could not be raised to %d: %s", soft, hard, error)
            return soft, soft
    return soft, max(soft, hard)


def raise_limit() -> int:
    """Raise the process's own limit as far as it may, and answer with it; a log line says what came of it."""
    soft, limit = raise_quietly()
    if limit < WANTED:
        _LOG.warning(
            "open files: %d are allowed, so at most %d connections are; %d are advised. Raise the hard limit "
            "(LimitNOFILE= of the service, --ulimit nofile= of a container, /etc/security/limits.conf)",
            limit,
            connections_max(),
            WANTED,
        )
    else:
        _LOG.info("open files: %d are allowed (%d before)", limit, soft)
    return limit


def connections_max() -> int:
    """Return the number of connections that the limit has room for beside the store's files."""
    limit = _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return limit - min(STORE_FILES, limit // 2)


def _number(limit: int) -> int:
    return _UNLIMITED if limit == resource.RLIM_INFINITY else limit


def _limit(number: int) -> int:
    return resource.RLIM_INFINITY if number == _UNLIMITED else number
