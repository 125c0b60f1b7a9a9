"""Connections of producers and consumers, as Apache's tools show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.net.channel import peer_text

if TYPE_CHECKING:
    from broker.net.clients import ClientInfo

__all__ = ["consumer_connection", "producer_connection"]


def producer_connection(client: ClientInfo) -> dict[str, Any]:
    """A producer as Apache's ``ProducerInfo`` has it."""
    return {
        "clientId": client.client_id,
        "language": client.language,
        "lastUpdateTimestamp": client.updated_ms,
        "remoteIP": f"/{peer_text(client.channel)}",
        "version": client.version,
    }


def consumer_connection(client: ClientInfo) -> dict[str, Any]:
    """A consumer as Apache's ``Connection`` has it."""
    return {
        "clientAddr": peer_text(client.channel),
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version,
    }
