"""An asyncio client for RocketMQ brokers: send now, at an instant, after a delay or by level; receive in groups.

Works with Timewheel's broker and with Apache's. See docs/client.md.
"""

from __future__ import annotations

from timewheel_client.connection import Connection
from timewheel_client.consumer import Consumer
from timewheel_client.credentials import Credentials
from timewheel_client.errors import (
    BrokerError,
    ClientError,
    ClosedError,
    ConnectionFailedError,
    NoRouteError,
    RequestTimeoutError,
    SendError,
)
from timewheel_client.producer import Producer
from timewheel_client.pulled import UndecodableMessage
from timewheel_client.received import Message
from timewheel_client.routes import MessageQueue
from timewheel_client.subscriptions import Sql
from timewheel_client.tls import tls_context
from timewheel_client.values import BatchMessage, RecallResult, SendResult

__all__ = [
    "BatchMessage",
    "BrokerError",
    "ClientError",
    "ClosedError",
    "Connection",
    "ConnectionFailedError",
    "Consumer",
    "Credentials",
    "Message",
    "MessageQueue",
    "NoRouteError",
    "Producer",
    "RecallResult",
    "RequestTimeoutError",
    "SendError",
    "SendResult",
    "Sql",
    "UndecodableMessage",
    "tls_context",
]
