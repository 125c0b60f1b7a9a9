"""The command ``timewheel``: the broker's own sub-commands, and those of other packages.

Another package adds one by an entry point of the group ``timewheel.commands`` that names a click command::

    [project.entry-points."timewheel.commands"]
    bench = "bench.cli:bench [bench]"

A sub-command is imported only when it is called, so ``timewheel send`` does not load the others. If the dependencies of
a sub-command are missing, it says in one line which extra installs them.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import NoReturn

import click

from remoting.messages.build import build_name
from remoting.printable import printable

__all__ = ["CommandGroup", "main"]

COMMANDS_GROUP = "timewheel.commands"
DISTRIBUTION = "rocketmq-timewheel"

_OWN = {
    "broker": ("broker.cli.run", "broker_command", "Run the broker, with a name server and the delay plug-in."),
    "send": ("broker.cli.send", "send_command", "Send a message, now or at a time."),
    "consume": ("broker.cli.consume", "consume_command", "Receive messages and print them."),
    "pending": ("broker.cli.pending", "pending_command", "List, count and change pending messages."),
    "status": ("broker.cli.status", "status_command", "Show the figures of all brokers or shards, and their sums."),
    "check": ("broker.cli.check", "check_command", "Check the store of a stopped broker and list its faults."),
    "drain": ("broker.cli.drain", "drain_command", "Take a shard out of service once its messages are read."),
    "demo": ("broker.cli.demo", "demo_command", "Run a broker, send delayed messages, and show how late each is."),
}


class CommandGroup(click.Group):
    """A group of sub-commands, each imported only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of our own sub-commands in order of use, then those of other packages by name."""
        del ctx
        return [*_OWN, *sorted(name for name in _foreign() if name not in _OWN)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a sub-command; None if there is none of that name. If it cannot be loaded, return one that says why."""
        del ctx
        if cmd_name in _OWN:
            module, attribute, _ = _OWN[cmd_name]
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        entry = _foreign().get(cmd_name)
        return _load(cmd_name, entry) if entry else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the sub-commands, our own without importing them."""
        rows = [(name, text) for name, (_, _, text) in _OWN.items()]
        for name in self.list_commands(ctx)[len(_OWN) :]:
            command = self.get_command(ctx, name)
            rows.append((name, command.get_short_help_str() if command else ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _foreign() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=COMMANDS_GROUP)}


def _load(name: str, entry: EntryPoint) -> click.Command:
    try:
        command = entry.load()
    except ImportError as error:
        extra = f"{DISTRIBUTION}[{','.join(entry.extras)}]" if entry.extras else DISTRIBUTION
        text = f"timewheel {name} needs a package that is not installed ({error}): pip install '{extra}'"
        return _stub(name, text)
    if not isinstance(command, click.Command):
        return _stub(name, f"timewheel {name}: {entry.value} is not a click command")
    return command


def _stub(name: str, text: str) -> click.Command:
    def say_why() -> None:
        raise click.ClickException(text)

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(
        name,
        callback=say_why,
        help=text,
        short_help=f"(not installed: 'timewheel {name}' says how to install it)",
        context_settings=settings,
        add_help_option=False,
    )


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    package_name=DISTRIBUTION, prog_name="timewheel", message=f"%(prog)s, version %(version)s ({build_name()})"
)
def _timewheel() -> None:
    """Delayed messages at any millisecond for RocketMQ clients."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line: the console script ``timewheel``. Errors are one line on standard error.

    Exit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted by Ctrl-C.
    """
    try:
        status = _timewheel.main(arguments, prog_name="timewheel", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(0)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "timewheel"
        click.echo(printable(f"timewheel: {error.format_message()} ({command} --help)", lines=True), err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(printable(f"timewheel: {error.format_message()}", lines=True), err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)
