"""Transactions in the simulation: what the ledger knows of them, and the producer that decides.

A half message ends in one of three ways, once: its committed message stands in its own topic, an op message says that
it was rolled back, or it was given up into the discard topic. Which it may be depends on what the producer has asked
for, and must be on what it was told.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.json_dialect import dumps
from remoting.messages.proof import is_proof
from remoting.messages.properties import TAGS, get_property
from store.half_messages import CHECKED, DECIDED, DISCARD_TOPIC, HALF_TOPIC, OP_TOPIC

if TYPE_CHECKING:
    from tests.simulation.ledger import Ledger, Sent
    from tests.simulation.world import World

__all__ = ["COMMIT", "DISCARD_TOPIC", "HALF_TOPIC", "OP_TOPIC", "ROLLBACK", "Decisions", "Producer"]

COMMIT, ROLLBACK = "commit", "rollback"
_CODES = {COMMIT: 8, ROLLBACK: 12}
_PLACES = Struct(">20xqq")
_PREPARED = Struct(">76xq")


class BrokenError(Exception):
    """What the ledger makes a violation of."""


class Decisions:
    """What the CommitLog says of half messages; offsets, so that what a crash takes can be forgotten."""

    def __init__(self) -> None:
        # CommitLog offset to number in the half queue, message. A queue that lost all may give its numbers again.
        self.halves: dict[int, tuple[int, int]] = {}
        self.rolled_back: dict[int, int] = {}  # message to CommitLog offset
        self.given_up: dict[int, int] = {}
        self.checked: list[tuple[int, int]] = []  # CommitLog offset, number in the half queue

    def clone(self) -> Decisions:
        """The same knowledge."""
        return self.before(1 << 62)

    def before(self, begin: int) -> Decisions:
        """What stood before a CommitLog offset."""
        other = Decisions()
        other.halves = {at: found for at, found in self.halves.items() if at < begin}
        other.rolled_back = {number: at for number, at in self.rolled_back.items() if at < begin}
        other.given_up = {number: at for number, at in self.given_up.items() if at < begin}
        other.checked = [found for found in self.checked if found[0] < begin]
        return other

    def ended(self, number: int) -> bool:
        """Whether a message was rolled back or given up."""
        return number in self.rolled_back or number in self.given_up

    def half(self, offset: int, record: bytes, message: Sent) -> None:
        """A half message stands in the log."""
        if message.kind != "half":
            raise BrokenError("is stored as a half message")
        self.halves[offset] = _PLACES.unpack_from(record)[0], message.number

    def committed(self, record: bytes, message: Sent, half_offset: int) -> None:
        """A committed message stands in the log."""
        if COMMIT not in message.asked:
            raise BrokenError("was committed by nobody")
        if message.decision == ROLLBACK or self.ended(message.number):
            raise BrokenError("was rolled back or given up, and committed")
        (named,) = _PREPARED.unpack_from(record)
        if (0 if is_proof(named) else named) != half_offset or record[39] & 0xC != 8:
            raise BrokenError("does not name its half message")

    def discarded(self, offset: int, message: Sent, check_max: int) -> None:
        """A message was given up."""
        if message.decision or message.number in self.rolled_back:
            raise BrokenError("was decided, and given up")
        half, number = next((at, found[0]) for at, found in self.halves.items() if found[1] == message.number)
        checks = sum(found == number and at > half for at, found in self.checked)
        if checks < check_max:
            raise BrokenError(f"was given up after {checks} checks of {check_max}")
        self.given_up[message.number] = offset

    def op(self, ledger: Ledger, offset: int, properties: str, body: bytes) -> None:
        """An op message stands in the log."""
        for number in map(int, filter(None, body.decode().split(","))):
            known = [at for at, found in self.halves.items() if at < offset and found[0] == number]
            if not known:
                raise BrokenError(f"op message {body!r} for what is no half message")
            message = ledger.sent[self.halves[max(known)][1]]
            tag = get_property(properties, TAGS)
            if tag == CHECKED:
                self.checked.append((offset, number))
            elif tag == DECIDED and message.number not in ledger.delivered and message.number not in self.given_up:
                if ROLLBACK not in message.asked or message.decision == COMMIT:
                    raise BrokenError(f"{message} was rolled back by nobody")
                self.rolled_back[message.number] = offset


class Producer:
    """The client that sends half messages, decides them, and is asked about them."""

    def __init__(self, world: World) -> None:
        self.world = world

    def greet(self) -> None:
        """Say that the group has a producer."""
        document = {"clientID": "producer-1", "producerDataSet": [{"groupName": "pg"}], "consumerDataSet": []}
        self.world.submit(RequestCode.HEART_BEAT, {}, dumps(document), [], "heartbeat")

    def end(self, number: int, wanted: str, from_check: bool = False) -> None:
        """Ask for a decision."""
        world = self.world
        sent = world.ledger.sent[number]
        assert sent.place is not None
        sent.asked.add(wanted)
        world.tell(f"{wanted} {number}")
        fields = {
            "producerGroup": "pg",
            "tranStateTableOffset": sent.place[0],
            "commitLogOffset": sent.place[1],
            "commitOrRollback": _CODES[wanted],
            "fromTransactionCheck": "true" if from_check else "false",
            "msgId": f"{number:032X}",
            "transactionId": f"{number:032X}",
        }
        world.submit(RequestCode.END_TRANSACTION, fields, b"", [number], wanted)

    def heard(self, number: int, wanted: str, reply: RemotingCommand) -> str:
        """A decision was answered; says what is wrong with that."""
        world = self.world
        ledger, message = world.ledger, world.ledger.sent[number]
        committed, rolled_back = number in ledger.delivered, number in ledger.decisions.rolled_back
        world.tell(f"reply to {wanted} {number}: {reply.code} {reply.remark or ''}")
        done = committed if wanted == COMMIT else rolled_back
        if reply.code in (ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT):
            if wanted == ROLLBACK and number in ledger.decisions.given_up:
                return ""  # as good as rolled back: nobody gets it
            if not done:
                return "was answered as done, and is not"
            if reply.code == ResponseCode.SUCCESS:
                message.decision = wanted
                message.decision_end = 0 if world.shape.sync else world.store.commit_log.end
        elif reply.code == ResponseCode.ILLEGAL_OPERATION:
            # What retention has taken can not be found again to see that it was committed.
            if message.state == "acked" and not (committed or ledger.decisions.ended(number)):
                return f"was refused {wanted}, though nothing was decided"
            if done and ledger.delivered[number].offset >= ledger.begin if committed else done:
                return f"was refused {wanted}, which is what was decided"
        return ""

    def asked(self, command: RemotingCommand) -> None:
        """The broker asks what became of a half message: the producer knows, does not know, or says nothing."""
        number = int(command.ext["transactionId"], 16)
        sent = self.world.ledger.sent[number]
        sent.place = int(command.ext["tranStateTableOffset"]), int(command.ext["commitLogOffset"])
        draw = self.world.rng.random()
        self.world.tell(f"asked about {number}")
        if draw < 0.5:
            wanted = COMMIT if draw < 0.25 else ROLLBACK
            self.end(number, next(iter(sorted(sent.asked)), wanted), True)
