"""Which brokers may have a message, by the text that names it."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Mapping

from remoting.errors import MessageError
from remoting.hosts import decode_host, parse_message_id
from timewheel_client.values.errors import NoRouteError

__all__ = ["named_brokers"]


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
        raise NoRouteError(f"{name} was given by a broker at {ip}:{port}, which is not there now: name its broker")
    try:
        words = urlsafe_b64decode(name.encode()).decode().split(" ")
    except ValueError:
        words = []
    if len(words) > 2 and words[0] == "v1":
        if words[2] not in brokers:
            raise NoRouteError(f"the recall handle is of broker {words[2]!r:.80}: there are {', '.join(brokers)}")
        return {words[2]: brokers[words[2]]}
    raise NoRouteError(f"{name:.80} may be a message of each of {', '.join(brokers)}: name its broker")
