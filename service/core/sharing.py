"""Which instance owns which shard, and who counts as an instance: pure rules, which each instance computes for itself.

Each change of an owner costs a pause in the deliveries of the shard: some tenths of a second if the old owner releases
it, more than 3 s if it cannot. So the rules change as little as they can:

- **Shares** (`shares`). Each shard ranks the members by a hash of both names; the best pairs are taken first, as long
  as the member has room. All members get the same number of shards, or one more. If a member goes, its shards go to the
  others, and few others move; if one comes, shards come to it. (Rendezvous hashing with quotas. With 64 shards and 8
  members, the end of one moves 4 shards of the others; dividing a sorted list, as consumers do, moves 17.)
- **Joins count late** (`Membership`): after `JOIN_MS`. Who dies before that moves nothing, and what comes to it is
  followed by it already.
- **Ends count at once**, unless it is the broker that has lost its list of members: a list without the one who asks
  says nothing about others, for `RESTARTED_MS`.
- **What others have seen counts** (`Membership.vouch`): whoever takes a shard over is a member in the eyes of
  somebody who is one. So instances that disagree agree after one takeover.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b

from service.core.progress import TargetQueue

__all__ = ["JOIN_MS", "RESTARTED_MS", "Membership", "shares", "standbys"]

JOIN_MS = 5000
"""How long an instance must have been there before shards come to it."""
RESTARTED_MS = 12_000
"""How long a broker that did not know the one who asks is not believed about the end of others. They notice within the
10 s after which each one looks."""
_LONG_AGO = -(1 << 60)

Ranking = list[tuple[bytes, str, TargetQueue]]


def _ranking(members: Iterable[str], shards: Sequence[TargetQueue]) -> Ranking:
    texts = [(shard, "|".join(map(str, shard)).encode()) for shard in shards]
    rows = [
        (blake2b(text, key=blake2b(member.encode(), digest_size=16).digest(), digest_size=8).digest(), member, shard)
        for member in members
        for shard, text in texts
    ]
    return sorted(rows)


def _assign(ranking: Ranking, members: int, shards: int, without: str = "") -> dict[TargetQueue, str]:
    """Take the best pairs first: `shards` shards for `members` members, one of the ranked ones left out."""
    share, odd = divmod(shards, members)
    owners: dict[TargetQueue, str] = {}
    load: dict[str, int] = {}
    for _, member, shard in ranking:
        if shard in owners or member == without:
            continue
        count = load.get(member, 0)
        if count < share or (count == share and odd > 0):
            odd -= count == share
            owners[shard] = member
            load[member] = count + 1
            if len(owners) == shards:
                break
    return owners


def shares(members: Collection[str], shards: Sequence[TargetQueue]) -> dict[TargetQueue, str]:
    """The owner of each shard; the same for everybody who knows the same members and shards, in any order.

    >>> shards = [("T", "b", number) for number in range(4)]
    >>> owners = shares(["m1", "m2"], shards)
    >>> sorted(owners.values())
    ['m1', 'm1', 'm2', 'm2']
    >>> set(shares(["m1"], shards).values())
    {'m1'}
    """
    return _assign(_ranking(members, shards), len(members), len(shards)) if members else {}


def standbys(
    me: str, members: Collection[str], coming: Collection[str], shards: Sequence[TargetQueue]
) -> set[TargetQueue]:
    """The shards that come to a member if one of the others vanishes, or once those count that do not yet.

    Of the shards of each member, each comes to one if that member vanishes.
    """
    ranking = _ranking(members, shards)
    owners = _assign(ranking, len(members), len(shards))
    found: set[TargetQueue] = set()
    if me in members:
        for other in members:
            if other != me:
                heirs = _assign(ranking, len(members) - 1, len(shards), without=other)
                found |= {shard for shard, heir in heirs.items() if heir == me and owners[shard] == other}
    if coming:
        later = shares({*members, *coming}, shards)
        found |= {shard for shard, owner in later.items() if owner == me and owners.get(shard) != me}
    return found


class Membership:
    """Who counts as a member, from what brokers say. Times are monotonic ms of this machine.

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
        """Take the lists of the brokers that have answered: one at least."""
        told = {self._me}.union(*lists)
        first = not self._since
        if any(self._me not in one for one in lists) and not first:
            self._lists_lost_until = mono_ms + self._restarted_ms
        for name in told - self._since.keys():
            self._since[name] = _LONG_AGO if first and (name != self._me or len(told) == 1) else mono_ms
        if mono_ms >= self._lists_lost_until:
            for name in self._since.keys() - told:
                del self._since[name]

    def vouch(self, name: str) -> None:
        """Somebody took a shard over under this name: it counts, if it is known."""
        if name in self._since:
            self._since[name] = _LONG_AGO

    def known(self) -> set[str]:
        """All that are there, whether they count or not."""
        return set(self._since)

    def counted(self, mono_ms: int) -> set[str]:
        """Those that count; all, if none has been there for long enough.

        >>> view = Membership("c", 5000)
        >>> view.saw([["a", "b", "c"]], 0); sorted(view.counted(0)), sorted(view.counted(5000))
        (['a', 'b'], ['a', 'b', 'c'])
        """
        old = {name for name, since in self._since.items() if mono_ms - since >= self._join_ms}
        return old or set(self._since)

    def next_ms(self, mono_ms: int) -> int | None:
        """When somebody begins to count, or an end; None if nothing changes by itself."""
        times = [since + self._join_ms for since in self._since.values()] + [self._lists_lost_until]
        return min((at for at in times if at > mono_ms), default=None)
