"""Shared by the sub-commands: errors in one line, running until a signal, options for connection and account."""

from __future__ import annotations

import errno
import functools
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import click

from broker.config.broker_config import ConfigError
from broker.plugins import PluginError
from remoting.printable import printable
from store.disk.errors import StoreError
from timewheel_client.net.tls import Tls, tls_context
from timewheel_client.net.until_signal import run_until_signal
from timewheel_client.values.errors import ClientError

__all__ = [
    "USER_ERRORS",
    "account_option",
    "namesrv_option",
    "one_line_errors",
    "pairs",
    "run_until_signal",
    "say",
    "secret_of",
    "settle",
    "tls_options",
]

Function = TypeVar("Function", bound=Callable[..., Any])

USER_ERRORS = (ConfigError, PluginError, StoreError, ClientError, OSError)
"""Errors that a user can fix. Any other error is a bug and keeps its traceback."""
SWITCH_INTERVAL_S = 0.0005
GC_THRESHOLDS = (50_000, 20, 100)
DEFAULT_NAMESRV = "127.0.0.1:9876"
SECRET_VARIABLE = "TIMEWHEEL_SECRET_KEY"


def namesrv_option(function: Function) -> Function:
    """Add ``--namesrv`` to a command."""
    return click.option(
        "--namesrv",
        envvar=["TIMEWHEEL_NAMESRV", "NAMESRV_ADDR"],
        default=DEFAULT_NAMESRV,
        show_default=True,
        metavar="HOST:PORT[;…]",
        help="Name servers. Also read from TIMEWHEEL_NAMESRV or NAMESRV_ADDR.",
    )(function)


def account_option(function: Function) -> Function:
    """Add ``--access-key`` to a command. `secret_of` reads the secret key that belongs to it."""
    return click.option(
        "--access-key",
        envvar="TIMEWHEEL_ACCESS_KEY",
        metavar="KEY",
        help=f"Sign requests as this account, with the secret key from the environment variable {SECRET_VARIABLE}.",
    )(function)


def secret_of(access_key: str | None) -> str | None:
    """Read the secret key of an account from the environment; None without an account.

    Raises click.UsageError if the variable is not set.
    """
    if not access_key:
        return None
    secret = os.environ.get(SECRET_VARIABLE)
    if not secret:
        raise click.UsageError(
            f"--access-key {access_key} needs its secret key in the environment variable {SECRET_VARIABLE}"
        )
    return secret


def tls_options(function: Function) -> Function:
    """Add the options ``--tls…`` to a command, which gets one value ``tls`` for all of them."""

    @functools.wraps(function)
    def with_tls(
        tls: bool, tls_ca: str | None, tls_cert: str | None, tls_key: str | None, tls_insecure: bool, **more: Any
    ) -> Any:
        given = [name for name, value in (("ca", tls_ca), ("cert", tls_cert), ("key", tls_key)) if value]
        if tls_insecure and tls_ca:
            raise click.UsageError(
                "--tls-ca and --tls-insecure exclude each other: --tls-insecure checks no certificate"
            )
        how: Tls = tls
        if given or tls_insecure:
            try:
                how = tls_context(tls_ca, certificate=tls_cert, key=tls_key, verify=not tls_insecure)
            except ValueError as error:
                raise click.UsageError(str(error)) from None
        return function(tls=how, **more)

    path = click.Path(exists=True, dir_okay=False)
    options = (
        click.option(
            "--tls", is_flag=True, help="Use TLS; check the server's certificate with the system's authorities."
        ),
        click.option(
            "--tls-ca", type=path, help="Use TLS; check the server's certificate with the authorities in this PEM file."
        ),
        click.option(
            "--tls-cert", type=path, help="Use TLS; present this certificate (PEM) if the server asks for one."
        ),
        click.option("--tls-key", type=path, help="The private key (PEM) of --tls-cert, if it is in a separate file."),
        click.option("--tls-insecure", is_flag=True, help="Use TLS, but check no certificate (for tests)."),
    )
    decorated: Any = with_tls
    for option in reversed(options):
        decorated = option(decorated)
    return cast(Function, decorated)


def settle() -> None:
    """Tune the interpreter for a running broker.

    The objects that exist now live as long as the process, so they are frozen: the garbage collector skips them. New
    objects form cycles only on errors, so the collector runs rarely (at its default of every 700 objects it took 4 % of
    the time under load). A busy thread gives up the interpreter lock after half a millisecond. With the default of 5 ms
    any delivery could be 5 ms late.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def say(text: str) -> None:
    """Print a line and flush it, so that a pipe gets it at once; makes text of peers printable."""
    click.echo(printable(text))
    sys.stdout.flush()


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn errors that users can fix (a port in use, a locked store, a bad value) into one line and exit status 1.

    Raises click.ClickException with that line; SystemExit if the reader of the output is gone.
    """
    try:
        yield
    except BrokenPipeError:
        raise SystemExit(1) from None
    except USER_ERRORS as error:
        text = _os_error(error) if isinstance(error, OSError) and not isinstance(error, ClientError) else str(error)
        raise click.ClickException(text) from None


def _os_error(error: OSError) -> str:
    text = error.strerror or str(error)
    if error.filename is not None:
        text = f"{error.filename}: {text}"
    if error.errno == errno.EADDRINUSE:
        text += (
            " (does another program listen there? --listen, --namesrv-listen and --http-listen choose other ports; a "
            "broker also listens two ports below its own, unless --set vipChannelEnable=false)"
        )
    return text


def pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """Read ``name=value`` arguments. Raises click.UsageError for one without a name or without ``=``."""
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise click.UsageError(f"{option} {text}: expected name=value")
        found[name.strip()] = value
    return found
