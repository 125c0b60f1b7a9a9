"""Half messages at the start of a broker: which of them are undecided."""

from __future__ import annotations

from collections.abc import Callable

from broker.tables.offsets import ConsumerOffsets
from broker.transactions.transaction_checks import TRANSACTIONS_GROUP
from broker.transactions.transaction_messages import op_message
from store.half_messages import DECIDED, HALF_TOPIC, OP_TOPIC, SECTION, HalfMessages
from store.message_store import MessageStore
from store.put.plugin_api import PutStatus, put_record

__all__ = ["recover_half_messages"]


def recover_half_messages(
    store: MessageStore, offsets: ConsumerOffsets, now_ms: Callable[[], int], warn: Callable[..., None]
) -> HalfMessages:
    """Find the undecided half messages, and keep their records until they are decided. Raises StoreError."""
    halves = HalfMessages(store, warn)
    apache = (offsets.get(TRANSACTIONS_GROUP, HALF_TOPIC, 0), offsets.get(TRANSACTIONS_GROUP, OP_TOPIC, 0))
    with store.checkpoint.reading(SECTION) as section:
        torn = halves.recover(section, apache, store.recovery.last[0])
    if torn is not None:
        warn("the decision about half message %d was torn by a crash: its second half is written now", torn)
        op = put_record(op_message(DECIDED, [torn], store.store_host, now_ms()), store.store_host)
        (result,) = store.put_batch([op])
        if result.status is PutStatus.PUT_OK:
            halves.apply(result.queue_offset, DECIDED, [torn])
    store.checkpoint.register(SECTION, halves.snapshot, halves.durable)
    store.retention.pins.append(halves.needed_offset)
    return halves
