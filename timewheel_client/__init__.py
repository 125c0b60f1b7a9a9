"""An asyncio client for RocketMQ brokers: send now, at an instant, after a delay or by level; receive in groups.

Works with Timewheel's broker and with Apache's. See docs/client.md.
"""

from __future__ import annotations

from timewheel_client.consuming.consumer import Consumer
from timewheel_client.consuming.pulled import UndecodableMessage
from timewheel_client.consuming.received import ReceivedMessage
from timewheel_client.consuming.subscriptions import Sql
from timewheel_client.net.connection import ClientConnection
from timewheel_client.net.credentials import Credentials
from timewheel_client.net.tls import tls_context
from timewheel_client.pending.pending_client import PendingClient
from timewheel_client.pending.pending_values import (
    ChangeResult,
    CountResult,
    MatchingResult,
    OutlookResult,
    TopicWaiting,
    WaitingMessage,
    WaitingPage,
    Which,
)
from timewheel_client.pending.service_client import ServiceClient
from timewheel_client.producing.producer import Producer
from timewheel_client.values.client_values import BatchMessage, RecallResult, SendResult
from timewheel_client.values.errors import (
    BrokerError,
    ClientError,
    ClosedError,
    ConnectionFailedError,
    NoRouteError,
    RequestTimeoutError,
    SendError,
)
from timewheel_client.values.routes import MessageQueue

__all__ = [
    "BatchMessage",
    "BrokerError",
    "ChangeResult",
    "ClientConnection",
    "ClientError",
    "ClosedError",
    "ConnectionFailedError",
    "Consumer",
    "CountResult",
    "Credentials",
    "MatchingResult",
    "MessageQueue",
    "NoRouteError",
    "OutlookResult",
    "PendingClient",
    "Producer",
    "RecallResult",
    "ReceivedMessage",
    "RequestTimeoutError",
    "SendError",
    "SendResult",
    "ServiceClient",
    "Sql",
    "TopicWaiting",
    "UndecodableMessage",
    "WaitingMessage",
    "WaitingPage",
    "Which",
    "tls_context",
]
