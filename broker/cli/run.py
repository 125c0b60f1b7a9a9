"""``timewheel broker``: the broker in the foreground."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from broker.broker import Broker
from broker.cli.common import USER_ERRORS, one_line_errors, pairs, run_until_signal, say, settle
from broker.config.broker_config import BrokerConfig, load_config, parse_address, parse_addresses
from broker.config.logs import IN_FILE_ONLY, log_settings, start_logging
from broker.open_files import connections_max, raise_limit
from broker.shards.layout import SHARDS_MAX, refuse_shards
from broker.shards.link import ShardLink
from broker.shards.start import Start
from broker.shards.supervisor import Supervisor
from store.disk.errors import StoreError
from store.disk.files import Files

__all__ = ["broker_command", "options_to_values", "ready_line", "serve", "shard_count"]

log = logging.getLogger("broker")

FAILURE_LOOK_S = 1


@click.command("broker")
@click.option("--store", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Store directory.")
@click.option("--listen", metavar="HOST:PORT", help="Address to listen on.  [default: 127.0.0.1:10911]")
@click.option(
    "--namesrv-listen", metavar="HOST:PORT", help="Address of the built-in name server.  [default: port 9876]"
)
@click.option(
    "--namesrv-addr", metavar="LIST", help="Register with these name servers (HOST:PORT;…); start no built-in one."
)
@click.option("--http-listen", metavar="HOST:PORT", help="Address for HTTP: the page, the API, metrics.")
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Configuration file, such as a broker.conf of Apache's.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set one configuration key. Repeatable.")
@click.option("--shards", metavar="N|auto", help="Run N shards, each in a process of its own. auto: one for each core.")
def broker_command(
    store: Path | None,
    listen: str | None,
    namesrv_listen: str | None,
    namesrv_addr: str | None,
    http_listen: str | None,
    file: Path | None,
    settings: tuple[str, ...],
    shards: str | None,
) -> None:
    """Run the broker until SIGTERM or Ctrl-C. It prints one line when it is ready. On SIGHUP it reads its files again.

    Precedence: --set, then the other options, then the file, then the defaults. The configuration keys are those of
    Apache's broker.conf and some of our own; docs/configuration.md lists them.

    RocketMQ 5's gRPC clients connect through Apache's proxy (org.apache.rocketmq:rocketmq-proxy:5.5.0, unmodified).
    Start the proxy with the address of this broker's name server: java -cp 'lib/*'
    org.apache.rocketmq.proxy.ProxyStartup -pm cluster -n NAMESRV_ADDRESS. See docs/rocketmq5-clients.md, also for the
    proxy's limits (by default no delay above one day).
    """
    options = options_to_values(store, listen, namesrv_listen, namesrv_addr, http_listen)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # ignored until the broker can reload its files
    with one_line_errors():
        given = pairs(settings, "--set")
        config = load_config(file, options, given)
        again = None if file is None else partial(load_config, file, options, given)
        stop_logging = start_logging(config)
        try:
            log_settings(config)
            raise_limit()
            if shards is None:
                refuse_shards(Files(), config.store_dir, config.broker_name)
                run_until_signal(lambda stop: serve(config, stop, again))
            else:
                count = shard_count(shards)
                run_until_signal(lambda stop: _supervise(config, Start(file, options, given), count, stop))
        except USER_ERRORS as error:
            log.critical("%s", error, extra=IN_FILE_ONLY)
            raise
        except Exception:
            log.critical("the broker stops because of an internal error", exc_info=True, extra=IN_FILE_ONLY)
            raise
        finally:
            stop_logging()


def options_to_values(
    store: Path | None,
    listen: str | None,
    namesrv_listen: str | None,
    namesrv_addr: str | None,
    http_listen: str | None = None,
) -> dict[str, str]:
    """Turn options into configuration keys and values. Raises click.UsageError for an invalid option."""
    if namesrv_listen is not None and namesrv_addr is not None:
        raise click.UsageError("--namesrv-listen and --namesrv-addr exclude each other")
    values: dict[str, str] = {}
    try:
        if store is not None:
            values["storePathRootDir"] = str(store)
        if listen is not None:
            host, port = parse_address(listen)
            values["bindAddress"], values["listenPort"] = host, str(port)
        if namesrv_listen is not None:
            values["namesrvListen"] = "{}:{}".format(*parse_address(namesrv_listen))
        if http_listen is not None:
            values["httpListen"] = "{}:{}".format(*parse_address(http_listen))
        if namesrv_addr is not None:
            values["namesrvAddr"] = ";".join(parse_addresses(namesrv_addr))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return values


async def serve(
    config: BrokerConfig, stop: asyncio.Event, read: Callable[[], BrokerConfig] | None, link: ShardLink | None = None
) -> None:
    """Run a broker until ``stop`` is set.

    ``read`` reads the settings again, on SIGHUP; None: there is no file. With a ``link`` the broker is a shard.
    Raises ConfigError, PluginError, StoreError or OSError if the broker cannot start or had to stop serving.
    """
    broker = Broker(config, link=link)
    await broker.start()
    loop, reloads = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def hung_up() -> None:
        if not reloads:
            task = loop.create_task(broker.reload(read))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, hung_up)
    try:
        settle()
        line = ready_line(broker)
        log.info("%s", line)
        if link is None:
            say(line)
        await _until_stopped(broker, stop)
        log.info("ending")
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a shutdown under way is not interrupted
        await asyncio.gather(*reloads)
        await broker.stop()
    log.info("ended")


def shard_count(text: str) -> int:
    """Read ``--shards``: a number, or ``auto`` for the cores that this process may use. Raises click.UsageError."""
    if text == "auto":
        return min(len(os.sched_getaffinity(0)), SHARDS_MAX)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= SHARDS_MAX:
        raise click.UsageError(f"--shards {text}: expected a number from 1 to {SHARDS_MAX}, or auto")
    return int(text)


async def _supervise(config: BrokerConfig, start: Start, count: int, stop: asyncio.Event) -> None:
    supervisor = Supervisor(config, start, count, connections_max())

    def ready(line: str) -> None:
        log.info("%s", line)
        say(line)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, supervisor.hang_up)
    await supervisor.run(stop, ready)


async def _until_stopped(broker: Broker, stop: asyncio.Event) -> None:
    """Wait until ``stop`` is set. Raises StoreError if the broker had to stop serving because a thread failed."""
    while not stop.is_set():
        if broker.failure is not None:
            raise StoreError(f"the broker accepts no more messages: {broker.failure}") from broker.failure
        try:
            async with asyncio.timeout(FAILURE_LOOK_S):
                await stop.wait()
        except TimeoutError:
            pass


def ready_line(broker: Broker) -> str:
    """The line that says that the broker is ready, with its addresses."""
    config = broker.config
    parts = [f"listening on {config.listen_host}:{broker.listen_port}"]
    parts.append(f"advertised as {config.broker_name} at {config.advertised}:{broker.listen_port}")
    if config.namesrv_listen is not None:
        parts.append(f"name server on {config.namesrv_listen[0]}:{broker.namesrv_port}")
    if config.http_listen is not None:
        parts.append(f"page and API on http://{config.http_listen[0]}:{broker.door.http_port}/")
    if config.metrics_listen is not None:
        parts.append(f"metrics on http://{config.metrics_listen[0]}:{broker.door.metrics_port}/metrics")
    for words, registered in (("registered with", True), ("NOT yet registered with", False)):
        names = [name for name, status in broker.name_servers.items() if (status == "registered") is registered]
        if names:
            parts.append(f"{words} {';'.join(names)}")
    parts.append(f"store {config.store_dir}")
    pending = sum(plugin.pending_count() for plugin in broker.plugins)
    parts.append(f"{pending} pending")
    return "ready: " + ", ".join(parts)
