"""Changes that are to be made on all shards: topics, groups, settings. The supervisor makes them, one at a time.

A change is a request of a client (or of a shard that needs a topic or a group) that a shard has received. The shard
does not carry it out; it asks the supervisor. The supervisor writes the change down, has each shard carry it out in
turn, and strikes out each shard that has confirmed. So

* all shards see all changes in the same order, whichever shard received them;
* the reply is sent when every running shard has the change. A shard that is down, or dies meanwhile, gets it at its
  start, before it accepts clients; the reply's remark names this shard;
* if the supervisor dies in between, the next one finds the change in the file and finishes it. Every change is
  idempotent.

A change that the first shard refuses is refused, and made nowhere. If a later shard does not confirm, the answer is
SYSTEM_ERROR and names it, and the change stays written down for it. A shard that dies before its answer may have made
the change: if the next one refuses it, the answer is SYSTEM_ERROR, too, and names both.

Settings (UPDATE_BROKER_CONFIG) are not written down: without a configuration file they last as long as the supervisor,
which gives them to each shard that it starts.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from broker.tables.json_files import JsonFile
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ProtocolError
from store.disk.errors import StoreError
from store.disk.files import Files

__all__ = ["CHANGES_MAX", "Change", "SharedChanges", "catch_up", "spread"]

_LOG = logging.getLogger(__name__)

CHANGES_MAX = 10_000
"""Most changes that wait for a shard that is down. Beyond it no further change is accepted."""
CHANGES_MAX_BYTES = 64 << 20

Ask = Callable[[int, int, dict[str, str], bytes], Awaitable[RemotingCommand]]
"""Has a shard carry out a request: index, code, fields, body. Raises OSError, TimeoutError or ProtocolError."""


class Change:
    """One change, and the shards that have not confirmed it."""

    __slots__ = ("body", "code", "ext", "waiting")

    def __init__(self, code: int, ext: dict[str, str], body: bytes, waiting: Iterable[int]) -> None:
        self.code = code
        self.ext = ext
        self.body = body
        self.waiting = set(waiting)

    def to_json(self) -> dict[str, Any]:
        """Write it for the file."""
        body = base64.b64encode(self.body).decode()
        return {"body": body, "code": self.code, "ext": self.ext, "waiting": sorted(self.waiting)}

    @staticmethod
    def from_json(document: Any) -> Change:
        """Read it. Raises KeyError, TypeError or ValueError."""
        ext = {str(name): str(value) for name, value in document["ext"].items()}
        body = base64.b64decode(document["body"], validate=True)
        return Change(int(document["code"]), ext, body, [int(index) for index in document["waiting"]])


class SharedChanges:
    """The changes that are not confirmed by all. Raises StoreError for a file that cannot be read or written."""

    def __init__(self, files: Files, path: Path) -> None:
        self._file = JsonFile(files, path)
        self.entries: list[Change] = []
        document = self._file.load() or {}
        try:
            self.entries = [Change.from_json(entry) for entry in document.get("changes") or ()]
        except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as error:
            raise self._file.damage("changes", f"no list of changes: {error!r}") from error

    def of(self, index: int) -> list[Change]:
        """The changes that a shard has not confirmed, the oldest first."""
        return [change for change in self.entries if index in change.waiting]

    def full(self) -> str:
        """Why no further change is accepted; empty if one is."""
        size = sum(len(change.body) for change in self.entries)
        if len(self.entries) < CHANGES_MAX and size < CHANGES_MAX_BYTES:
            return ""
        return (
            f"{len(self.entries)} changes of {size} bytes wait for shards that are down (limits {CHANGES_MAX} and "
            f"{CHANGES_MAX_BYTES} bytes): start these shards, or drain them"
        )

    def forget(self, index: int) -> None:
        """Forget the changes that wait for a shard that was taken out. It gets whole tables when it comes back.

        Raises StoreError.
        """
        for change in self.entries:
            change.waiting.discard(index)
        self.save()

    def wait_as(self, source: int, others: Iterable[int]) -> bool:
        """Let the changes that wait for ``source`` wait for ``others``, too. Returns whether there are any.

        The caller saves.
        """
        late = self.of(source)
        for change in late:
            change.waiting.update(others)
        return bool(late)

    def save(self) -> None:
        """Write the changes that not all have confirmed. Any thread. Raises StoreError."""
        self.entries = [change for change in self.entries if change.waiting]
        self._file.save({"changes": [change.to_json() for change in self.entries]})


async def spread(
    changes: SharedChanges,
    command: RemotingCommand,
    members: list[int],
    serving: list[int],
    ask: Ask,
    name: Callable[[int], str],
) -> RemotingCommand:
    """Make a change on all shards, and return the reply. Call it for one change at a time.

    Args:
        members: All shards. ``serving``: those that take requests.
        ask: Has one carry it out.
        name: Writes a shard's name.

    Raises StoreError if the confirmations cannot be written; the change is then made once more later.
    """
    change = Change(command.code, dict(command.ext), command.body, members)
    lasting = command.code != RequestCode.UPDATE_BROKER_CONFIG
    if full := changes.full():
        return command.reply(ResponseCode.SYSTEM_ERROR, full)
    if lasting:
        changes.entries.append(change)
        try:
            changes.save()
        except StoreError as error:
            changes.entries.remove(change)
            return command.reply(ResponseCode.SYSTEM_ERROR, f"the change was made on no shard: {error}")
    done: list[int] = []
    answer: RemotingCommand | None = None
    problems: list[str] = []
    died: list[str] = []
    for index in serving:
        try:
            await catch_up(changes, index, ask, name, before=change)
            reply = await ask(index, change.code, change.ext, change.body)
        except ConnectionError:
            died.append(name(index))  # the change still waits for it, so it gets it at its start
            continue
        except (OSError, TimeoutError, ProtocolError) as error:
            problems.append(f"{name(index)} has not confirmed it: {str(error) or type(error).__name__}")
            continue
        change.waiting.discard(index)
        if reply.code == ResponseCode.SUCCESS:
            done.append(index)
            answer = answer or reply
        elif not (done or problems or died):
            change.waiting.clear()
            answer = reply
            break
        else:
            problems.append(f"{name(index)} refuses it: {reply.remark}")
    if problems:
        problems += [f"{dead} has died and may have made it" for dead in died]
    if lasting:
        changes.save()
    return _answer(command, answer, problems, [name(index) for index in sorted(change.waiting)], list(map(name, done)))


async def catch_up(
    changes: SharedChanges, index: int, ask: Ask, name: Callable[[int], str], before: Change | None = None
) -> bool:
    """Have a shard make the changes it has not confirmed, in order, up to ``before``. Returns whether there were any.

    A change that it refuses is logged and not tried again. Raises what ``ask`` raises.
    """
    late = changes.of(index)
    if before in late:
        late = late[: late.index(before)]
    for change in late:
        reply = await ask(index, change.code, change.ext, change.body)
        change.waiting.discard(index)
        if reply.code != ResponseCode.SUCCESS:
            _LOG.error("%s refuses a change that others made (request %d): %s", name(index), change.code, reply.remark)
    return bool(late)


def _answer(
    command: RemotingCommand, answer: RemotingCommand | None, problems: list[str], late: list[str], done: list[str]
) -> RemotingCommand:
    if problems or answer is None:
        where = f"made on {', '.join(done)}" if done else "confirmed by no shard"
        text = "; ".join([where, *(problems or ["no shard serves"])])
        return command.reply(ResponseCode.SYSTEM_ERROR, f"{text}: ask again")
    remark = answer.remark
    if answer.code == ResponseCode.SUCCESS and late:
        remark = f"made on {', '.join(done)}; {', '.join(late)} gets it at its start"
    return command.reply(answer.code, remark, answer.ext, answer.body)
