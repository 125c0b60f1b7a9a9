"""Apache RocketMQ, as the benchmarks have it (`bench.peers.apache`), but for work that tests have no use for."""

from __future__ import annotations

from pathlib import Path

from bench.peers import apache
from bench.peers.apache import OPENS, VERSION, apache_jars

__all__ = ["OPENS", "TIMER_OFTEN", "VERSION", "ApacheBroker", "ApacheNameServer", "apache_jars"]

IDLE = {
    # A thread turns without a pause from the start until this time is over; by default ten seconds.
    "transactionMetricFlushInterval": "500",
    # So often the 39 MB of the timer's wheel are compared with their file byte by byte; by default every second.
    "timerFlushIntervalMs": "3600000",
    # The thread TransactionalOpBatchService turns without a pause as soon as a transaction was decided longer ago than
    # the first of these (by default 3 s). With the second one it writes each decision at once, and has nothing to wait
    # for.
    "transactionOpBatchInterval": "3600000",
    "transactionOpMsgMaxSize": "1",
}
"""Most of the processor time that a broker without clients takes: 7 s at its start, and a tenth of a core later. Once
it has had a transaction, it takes a whole core."""


TIMER_OFTEN = {"timerFlushIntervalMs": "10000"}
"""For a broker that is started again, or whose store is read: its timer's files are of so long ago at most."""

NO_TLS = ("-Dtls.server.mode=disabled",)
"""Without it each process makes itself a certificate with an RSA key, whether or not a client will ask for it: two
seconds of processor time for the name server, as much for the broker."""


class ApacheNameServer(apache.ApacheNameServer):
    """Apache's name server; see `bench.peers.apache`. It speaks TLS only with ``tls``."""

    def __init__(self, folder: Path, version: str = VERSION, *, tls: bool = False) -> None:
        super().__init__(folder, version, () if tls else NO_TLS)


class ApacheBroker(apache.ApacheBroker):
    """Apache's broker; see `bench.peers.apache`. It speaks TLS only with ``tls``."""

    def __init__(
        self,
        folder: Path,
        namesrv: str,
        settings: dict[str, str] | None = None,
        heap: str = "1g",
        version: str = VERSION,
        *,
        tls: bool = False,
    ) -> None:
        super().__init__(
            folder, namesrv, {**IDLE, **(settings or {})}, heap, version=version, options=() if tls else NO_TLS
        )
