"""The brokers that may have a message, by the text that names it; and the one of their answers that is returned.

A delay key is unique on one broker only. So every broker is asked, and all that waits under the key is acted on: who
cancels a key means that nothing of it is delivered. One answer is told, with the others beside it:

1. of messages that wait, or did until the order: ``done`` first, then ``changed``, ``refused`` and ``already``; of two
   alike the one that is due first
2. of those that do not wait any more, what happened last: a cancel that is asked for again is ``already``, whatever the
   key named on another broker before. At the same time, or where the time is not known, a delivery
3. ``unknown``, if no broker knows the key
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from remoting.errors import MessageError
from remoting.hosts import decode_host, parse_message_id
from timewheel_client.values.errors import NoRouteError

__all__ = ["named_brokers", "told_first"]

_WAITING = ("done", "changed", "refused", "already")


def told_first(documents: Sequence[Mapping[str, Any]], verb: str = "") -> list[int]:
    """Put what several brokers said of one name in order: the places of what is told, and of the others.

    Args:
        documents: An answer of each broker: ``verdict`` and, where they have a meaning, ``when_ms`` and ``due_ms``.
        verb: What was ordered; empty for a look. A cancelled message is ``already`` only for a cancel.

    What is unknown is left out, unless it is all there is.

    >>> told_first([{"verdict": "already", "when_ms": 5}, {"verdict": "unknown"}, {"verdict": "done"}], "cancel")
    [2, 0]
    """

    def rank(place: int) -> tuple[int, int, int]:
        document = documents[place]
        verdict = document["verdict"]
        if verdict in _WAITING and (verdict, verb) != ("already", "cancel"):
            return 0, _WAITING.index(verdict), document.get("due_ms") or 0
        return 1, -(document.get("when_ms") or 0), verdict != "too_late"

    known = [place for place, document in enumerate(documents) if document["verdict"] != "unknown"]
    return sorted(known, key=rank) or [0]


def named_brokers(name: str, brokers: Mapping[str, str]) -> dict[str, str]:
    """The brokers, name and address, that may have a message.

    Raises NoRouteError where a name means none of them, or another message on each.
    """
    if name.startswith("key:") or len(brokers) < 2:
        return dict(brokers)
    try:
        host = parse_message_id(name)[0]
    except MessageError:
        pass
    else:
        ip, port = decode_host(host)
        found = {broker: address for broker, address in brokers.items() if address == f"{ip}:{port}"}
        if found:
            return found
        raise NoRouteError(f"{name} is of a broker at {ip}:{port}, which is not registered: name its broker")
    try:
        words = urlsafe_b64decode(name.encode()).decode().split(" ")
    except ValueError:
        words = []
    if len(words) > 2 and words[0] == "v1":
        if words[2] not in brokers:
            raise NoRouteError(f"the recall handle is of broker {words[2]!r:.80}: there are {', '.join(brokers)}")
        return {words[2]: brokers[words[2]]}
    raise NoRouteError(f"{name:.80} may be a message of any of {', '.join(brokers)}: name its broker")
