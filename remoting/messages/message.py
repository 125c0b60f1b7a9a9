"""Everything about one message, in one place to import from.

========================  ====================================================================
`remoting.messages.record`         `Message`, and the CommitLog record that is made of it
`remoting.messages.stored`         `StoredMessage`: a record read back
`remoting.hosts`          addresses and message ids
`remoting.messages.keys`           tag hashes and search keys
`remoting.messages.batch`          client batches
`remoting.messages.uniform_batch`  client batches as columns
`remoting.messages.record_rows`    many records at once
`remoting.layout`         where each field stands (all of it is imported from there)
`remoting.messages.proof`          the checksum of topic and properties (imported from there)
`remoting.messages.properties`     the property text (imported from there)
========================  ====================================================================
"""

from __future__ import annotations

from remoting.errors import MessageError, RecordError
from remoting.hosts import NO_HOST, decode_host, encode_host, message_id, message_ids, parse_message_id
from remoting.layout import (
    BORN_HOST_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    OFFSET_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_V6,
    SYS_FLAG_AT,
)
from remoting.messages.batch import batch_slice, join_batch, split_batch
from remoting.messages.keys import java_hash, message_keys, tag_hash, tags_code
from remoting.messages.record import (
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES,
    MAX_TOPIC_BYTES_V1,
    Message,
    encode_record,
    record_fields,
    record_size,
    record_topic,
    store_ms_at,
)
from remoting.messages.record_rows import RecordRows
from remoting.messages.stored import StoredMessage, decode_record
from remoting.messages.uniform_batch import UniformBatch, split_uniform, whole_numbers

__all__ = [
    "BORN_HOST_V6",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "MAX_PROPERTIES_BYTES",
    "MAX_TOPIC_BYTES",
    "MAX_TOPIC_BYTES_V1",
    "NO_HOST",
    "OFFSET_AT",
    "QUEUE_OFFSET_AT",
    "STORE_HOST_V6",
    "SYS_FLAG_AT",
    "Message",
    "MessageError",
    "RecordError",
    "RecordRows",
    "StoredMessage",
    "UniformBatch",
    "batch_slice",
    "decode_host",
    "decode_record",
    "encode_host",
    "encode_record",
    "java_hash",
    "join_batch",
    "message_id",
    "message_ids",
    "message_keys",
    "parse_message_id",
    "record_fields",
    "record_size",
    "record_topic",
    "split_batch",
    "split_uniform",
    "store_ms_at",
    "tag_hash",
    "tags_code",
    "whole_numbers",
]
