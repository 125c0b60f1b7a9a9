"""``timewheel service``: arbitrary delay beside an existing cluster; see docs/cluster.md."""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from remoting.printable import printable
from service.front.front import SenderFront
from service.link.cluster import ClusterLink
from service.link.log import start_logging
from service.link.progress_log import progress_topic
from service.running.entries import REJECTED_TOPIC, is_for_senders, is_topic_name
from service.running.service import DelayService
from store.disk.errors import StoreError
from store.disk.files import Files
from timewheel_client import ServiceClient
from timewheel_client.consuming.subscriptions import need_name
from timewheel_client.net.connection import split_address
from timewheel_client.net.credentials import credentials_of
from timewheel_client.net.tls import Tls, tls_context
from timewheel_client.net.until_signal import run_until_signal
from timewheel_client.values.errors import ClientError

__all__ = ["service_command"]

_LOG = logging.getLogger(__name__)
SECRET_VARIABLE, TOKEN_VARIABLE = "TIMEWHEEL_SECRET_KEY", "TIMEWHEEL_HTTP_TOKEN"
VERDICT_MS = 15_000
"""Milliseconds that an HTTP request waits for the verdict on a change."""
HTTP_OPTION, METRICS_OPTION = "--http-listen", "--metrics-listen"
SWITCH_INTERVAL_S = 0.0005


def need_token(text: str) -> None:
    """Check a token, if one is set: it must be too long to guess. Raises click.UsageError."""
    if text and not re.fullmatch(r"[!-~]{16,512}", text):
        raise click.UsageError(f"{TOKEN_VARIABLE}: expected 16 to 512 printable characters without blanks")


def need_entry_topic(topic: str) -> None:
    """Check the name of an entry topic. Raises ValueError.

    >>> need_entry_topic("TIMEWHEEL_REJECTED")
    Traceback (most recent call last):
        ...
    ValueError: --topic TIMEWHEEL_REJECTED: this topic has another use; an entry topic must have none
    """
    need_name("--topic", topic)
    if not is_topic_name(progress_topic(topic)):
        raise ValueError(
            f"--topic {topic!r:.140} is too long: {progress_topic('')} is added, and 127 characters are allowed"
        )
    if topic == REJECTED_TOPIC or not is_for_senders(topic, ""):
        raise ValueError(f"--topic {topic}: this topic has another use; an entry topic must have none")


def _tls(tls: bool, tls_ca: str | None) -> Tls:
    if tls_ca is None:
        return tls
    try:
        return tls_context(tls_ca)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _open_door(
    service: DelayService, commands: Callable[[], ServiceClient], http: str | None, metrics: str | None
) -> Callable[[], None]:
    """Serve HTTP at the given addresses; returns what ends it.

    Raises OSError if an address cannot be used, click.ClickException if the extra ``http`` is not installed.
    """
    if http is None and metrics is None:
        return lambda: None
    token = os.environ.get(TOKEN_VARIABLE, "")
    try:
        from service.door.door import ServiceDoor
    except ImportError:
        option = METRICS_OPTION if http is None else HTTP_OPTION
        raise click.ClickException(f"{option} needs pip install 'rocketmq-timewheel[http]'") from None
    door = ServiceDoor(service, commands, token)
    try:
        if http is not None:
            door.bind_all(*split_address(http))
        if metrics is not None:
            door.bind_metrics(*split_address(metrics))
        door.start()
    except BaseException:
        door.stop()
        raise
    return door.stop


@click.command("service", short_help="Deliver at any millisecond beside an existing cluster.")
@click.option("--namesrv-addr", required=True, envvar="NAMESRV_ADDR", metavar="HOST:PORT[;…]", help="Name servers.")
@click.option(
    "--store",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for caches. It may be lost.",
)
@click.option("--topic", default="TIMEWHEEL", show_default=True, help="The entry topic, which senders send to.")
@click.option(
    "--access-key",
    envvar="TIMEWHEEL_ACCESS_KEY",
    help=f"Sign requests as this account, with the secret key from the environment variable {SECRET_VARIABLE}.",
)
@click.option(
    "--roll-after",
    "roll_after_s",
    type=click.IntRange(1),
    default=86_400,
    show_default=True,
    metavar="SECONDS",
    help="Store an entry again if it still waits this long after it was stored. Must be below the brokers' "
    "fileReservedTime.",
)
@click.option(
    "--warm-standby/--no-warm-standby",
    "warm",
    default=True,
    help="Also follow the shards that this instance would take over if another one vanished (the default).",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Act as name server and brokers for senders that stay as they are. PORT is the name server's. Each broker "
    "gets a port after it.",
)
@click.option(
    HTTP_OPTION,
    metavar="HOST:PORT",
    help="Address for HTTP: the page, the API, /healthz, /readyz and /metrics. On another address than 127.0.0.1, page "
    f"and API need a token in the environment variable {TOKEN_VARIABLE}.",
)
@click.option(METRICS_OPTION, metavar="HOST:PORT", help="Address for metrics only (Prometheus), at /metrics.")
@click.option("--tls", is_flag=True, help="Use TLS; check certificates with the system's authorities.")
@click.option(
    "--tls-ca", type=click.Path(exists=True, dir_okay=False), help="Use TLS; check certificates with this PEM file."
)
def service_command(
    namesrv_addr: str,
    store: Path,
    topic: str,
    access_key: str | None,
    roll_after_s: int,
    warm: bool,
    listen: str | None,
    http_listen: str | None,
    metrics_listen: str | None,
    tls: bool,
    tls_ca: str | None,
) -> None:
    """Deliver messages at their millisecond, as a service beside an existing RocketMQ cluster.

    Senders send to the entry topic, with the properties TW_TOPIC (the topic to deliver to) and TW_DELIVER_MS (the due
    time, epoch ms). Several instances share the queues of the entry topic. Waiting messages are stored in the cluster;
    --store holds only caches. With --listen, senders need no change: they use an instance as their name server.
    """
    need_token(os.environ.get(TOKEN_VARIABLE, ""))
    secret = os.environ.get(SECRET_VARIABLE) if access_key else None
    if access_key and not secret:
        raise click.UsageError(f"--access-key {access_key} needs its secret key in {SECRET_VARIABLE}")
    try:
        need_entry_topic(topic)
        for address in (http_listen, metrics_listen, listen):
            if address is not None:
                split_address(address)
        encryption = _tls(tls, tls_ca)
        cluster = ClusterLink(namesrv_addr, topic, credentials_of(access_key, secret), encryption)
        front = SenderFront(cluster, *split_address(listen), encryption) if listen is not None else None
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from None
    stop_logging = start_logging()
    try:
        files = Files()
        files.makedirs(store)
        release = files.lock(store / "lock")
        try:
            gc.collect()
            gc.freeze()
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            service = DelayService(cluster, namesrv_addr, store, roll_after_s * 1000, warm, front)
            client = partial(ServiceClient, namesrv_addr, topic=topic, timeout_ms=VERDICT_MS, tls=encryption)
            commands = partial(client, access_key=access_key, secret_key=secret)
            close_door = _open_door(service, commands, http_listen, metrics_listen)
            try:
                run_until_signal(service.run)
            finally:
                close_door()
        finally:
            release()
    except (ClientError, StoreError, OSError) as error:
        raise click.ClickException(printable(str(error), lines=True)) from None
    finally:
        stop_logging()
