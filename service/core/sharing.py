"""The owner of each shard, and the members: pure rules, which each instance computes for itself.

Each change of owner interrupts the deliveries of the shard: for some tenths of a second if the old owner releases it,
for more than 3 s if it cannot. So the rules move as few shards as possible:

- **Shares** (`shares`). Each shard ranks the members by a hash of both names. The best pairs are taken first, as long
  as the member has room. Of each broker's shards, every member gets the same number, or one more. If a member goes, its
  shards go to the others, and few other shards move. If a member comes, shards move to it only. This is rendezvous
  hashing with quotas. (With 64 shards and 8 members, the end of one member moves 4 shards between the others. Dividing
  a sorted list, as consumers do, moves 17.)
- **Each broker is shared out separately.** How one broker's shards are shared does not depend on which other brokers
  are known. Brokers are remembered for `KEEP_MS` (`KnownShards`).
- **Joins count late** (`Membership`): a new member counts after `JOIN_MS`. Meanwhile it follows the shards that it will
  own. A longer time was tried and not taken: with an instance killed every 5 s, shards waited a quarter longer at 2 s
  than at 1 s.
- **Ends count at once**, unless the broker has lost its list of members: for `RESTARTED_MS` a list that lacks the
  instance that asks says nothing about others.
- **Takeovers are evidence** (`Membership.vouch`): an instance that takes a shard over counts as a member, if it is
  known. So instances that disagree agree after one takeover.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b

from service.core.progress import TargetQueue

__all__ = ["JOIN_MS", "KEEP_MS", "RESTARTED_MS", "KnownShards", "Membership", "heirs", "shares", "standbys"]

JOIN_MS = 1000
"""An instance gets shards after it has been listed for this long."""
RESTARTED_MS = 12_000
"""A broker that did not list the instance that asks has lost its list, and says nothing of the end of others for this
long. They register again within 10 s."""
KEEP_MS = 600_000
"""The shards of a broker count for this long after name servers have stopped naming it."""
_LONG_AGO = -(1 << 60)


class _Group:
    """The shards of one broker, and a rank for each pair of shard and member."""

    def __init__(self, members: Iterable[str], shards: Sequence[TargetQueue]) -> None:
        self.count = len(shards)
        texts = [(shard, "|".join(map(str, shard)).encode()) for shard in shards]
        # Names are hashed first, because a key of blake2b has 64 bytes at most.
        keys = [(member, blake2b(member.encode(), digest_size=16).digest()) for member in members]
        self._ranking = sorted(
            (blake2b(text, key=key, digest_size=8).digest(), member, shard)
            for member, key in keys
            for shard, text in texts
        )

    def assign(self, members: int, without: str = "") -> dict[TargetQueue, str]:
        """Assign the shards, best pairs first, to this number of members; one of the ranked ones may be left out."""
        share, odd = divmod(self.count, members)
        owners: dict[TargetQueue, str] = {}
        load: dict[str, int] = {}
        for _, member, shard in self._ranking:
            if shard in owners or member == without:
                continue
            count = load.get(member, 0)
            if count < share or (count == share and odd > 0):
                odd -= count == share
                owners[shard] = member
                load[member] = count + 1
                if len(owners) == self.count:
                    break
        return owners


def _groups(members: Iterable[str], shards: Iterable[TargetQueue]) -> list[_Group]:
    by_broker: dict[str, list[TargetQueue]] = {}
    for shard in sorted(shards):
        by_broker.setdefault(shard[1], []).append(shard)
    names = sorted(members)
    return [_Group(names, rows) for rows in by_broker.values()]


def shares(members: Collection[str], shards: Iterable[TargetQueue]) -> dict[TargetQueue, str]:
    """The owner of each shard. The result depends on the set of members, not on their order.

    >>> shards = [("T", "b", number) for number in range(4)]
    >>> owners = shares(["m1", "m2"], shards)
    >>> sorted(owners.values())
    ['m1', 'm1', 'm2', 'm2']
    >>> set(shares(["m1"], shards).values())
    {'m1'}
    """
    owners: dict[TargetQueue, str] = {}
    for group in _groups(members, shards) if members else ():
        owners |= group.assign(len(members))
    return owners


def standbys(
    me: str, members: Collection[str], coming: Collection[str], shards: Collection[TargetQueue]
) -> set[TargetQueue]:
    """The shards that a member gets if another one vanishes, or when members that do not count yet begin to.

    If a member vanishes, each of its shards goes to one of the others.
    """
    found: set[TargetQueue] = set()
    owners = shares(members, shards)
    others = sorted(set(members) - {me}) if me in members else []
    for group in _groups(members, shards):
        for other in others:
            # The ranks of the others stay as they are, so the sorted list serves for each case.
            heirs = group.assign(len(members) - 1, without=other)
            found |= {shard for shard, heir in heirs.items() if heir == me and owners[shard] == other}
    if coming:
        later = shares({*members, *coming}, shards)
        found |= {shard for shard, owner in later.items() if owner == me and owners.get(shard) != me}
    return found


def heirs(members: Collection[str], owners: Mapping[TargetQueue, str]) -> dict[TargetQueue, str]:
    """The member that gets each shard if its owner vanishes; empty if there is only one member.

    >>> shards = [("T", "b", number) for number in range(4)]
    >>> found, owners = heirs(["m1", "m2"], shares(["m1", "m2"], shards)), shares(["m1", "m2"], shards)
    >>> sorted(found) == shards and all(found[shard] != owners[shard] for shard in shards)
    True
    """
    found: dict[TargetQueue, str] = {}
    if len(members) < 2:
        return found
    for group in _groups(members, owners):
        for member in members:
            left = group.assign(len(members) - 1, without=member)
            found |= {shard: heir for shard, heir in left.items() if owners[shard] == member}
    return found


class KnownShards:
    """All shards, also those of brokers that the name server does not know at present.

    A restarted name server knows only the brokers that have registered since. And a broker that is away comes back.
    Meanwhile its shards keep their owners, because an owner needs the broker to give them up.
    """

    def __init__(self, keep_ms: int = KEEP_MS) -> None:
        self._keep_ms = keep_ms
        self._by_broker: dict[str, tuple[int, list[TargetQueue]]] = {}

    def saw(self, shards: Iterable[TargetQueue], mono_ms: int) -> list[TargetQueue]:
        """Add the shards of a route; returns all known ones, sorted.

        >>> known = KnownShards(60_000)
        >>> known.saw([("T", "a", 0), ("T", "b", 0)], 0), known.saw([("T", "a", 0)], 60_000), known.saw([], 60_001)
        ([('T', 'a', 0), ('T', 'b', 0)], [('T', 'a', 0), ('T', 'b', 0)], [('T', 'a', 0)])
        """
        found: dict[str, list[TargetQueue]] = {}
        for shard in shards:
            found.setdefault(shard[1], []).append(shard)
        self._by_broker |= {broker: (mono_ms, rows) for broker, rows in found.items()}
        for broker, (seen_ms, _) in list(self._by_broker.items()):
            if mono_ms - seen_ms > self._keep_ms:
                del self._by_broker[broker]
        return sorted(shard for _, rows in self._by_broker.values() for shard in rows)


class Membership:
    """Instances that count as members, by the lists of the brokers. Times are monotonic ms of this machine.

    At its first look an instance counts all that are listed, and itself. The others release its shards a little later.

    Args:
        me: The own name.
        join_ms, restarted_ms: As the constants.
    """

    def __init__(self, me: str, join_ms: int = JOIN_MS, restarted_ms: int = RESTARTED_MS) -> None:
        self._me = me
        self._join_ms = join_ms
        self._restarted_ms = restarted_ms
        self._since: dict[str, int] = {}
        self._lists_lost_until = _LONG_AGO

    def saw(self, lists: Sequence[Collection[str]], mono_ms: int) -> None:
        """Process the lists of the brokers that have answered, at least one."""
        told = {self._me}.union(*lists)
        first = not self._since
        if any(self._me not in one for one in lists) and not first:
            self._lists_lost_until = mono_ms + self._restarted_ms
        for name in told - self._since.keys():
            self._since[name] = _LONG_AGO if first else mono_ms
        if mono_ms >= self._lists_lost_until:
            for name in self._since.keys() - told:
                del self._since[name]

    def vouch(self, name: str) -> None:
        """Count a member at once, if it is known, because it took a shard over."""
        if name in self._since:
            self._since[name] = _LONG_AGO

    def known(self) -> set[str]:
        """All listed members, whether they count yet or not."""
        return set(self._since)

    def counted(self, mono_ms: int) -> set[str]:
        """The members that count; this instance always does.

        >>> view = Membership("a", 1000)
        >>> view.saw([["a", "b"]], 0); view.saw([["a", "b", "c"]], 500)
        >>> sorted(view.counted(500)), sorted(view.counted(1500))
        (['a', 'b'], ['a', 'b', 'c'])
        """
        return {name for name, since in self._since.items() if mono_ms - since >= self._join_ms}

    def next_ms(self, mono_ms: int) -> int | None:
        """Next time at which the members may change without new lists, monotonic ms; None: never."""
        times = [since + self._join_ms for since in self._since.values()] + [self._lists_lost_until]
        return min((at for at in times if at > mono_ms), default=None)
