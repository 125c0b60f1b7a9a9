"""The configuration keys that Apache's broker does not know: one table, like those of `broker.config.config_keys`."""

from __future__ import annotations

from broker.config.key import Key, Live
from broker.config.values import (
    a_token,
    a_url,
    a_whole_number,
    an_address,
    any_text,
    one_of,
    plugin_names,
    true_or_false,
)

__all__ = ["OWN_KEYS"]

_MS = a_whole_number(1, 2**31 - 1)
_VERDICT_H = a_whole_number(1, 24 * 366)
_PENDING_BYTES = a_whole_number(0, 2**60)
_MIB = 1 << 20
_LOG_BYTES = a_whole_number(4096, 2**40)

OWN_KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key(
            "plugins",
            "delay",
            "Plug-ins, separated by commas: names or package.module:Class. Empty: none.",
            plugin_names,
        ),
        Key(
            "namesrvListen",
            "127.0.0.1:9876",
            "Address of the embedded name server. Not set: port 9876 on the broker's address. Empty: no name server.",
            an_address,
        ),
        Key("httpListen", "", "Address of the HTTP port ([http.md](http.md)). Empty: no HTTP.", an_address),
        Key("httpToken", "", "Bearer token for HTTP. A request with it may see and change pending messages.", a_token),
        Key(
            "timewheelTraceEndpoint",
            "",
            "URL that gets trace spans by OTLP ([metrics.md](metrics.md)). Empty: no spans.",
            a_url,
        ),
        Key("vipChannelEnable", "true", "Listen on the VIP port, too.", true_or_false),
        Key(
            "autoCreateTopicOnRoute",
            "false",
            "A route lookup for an unknown topic creates it (for ali-ons).",
            true_or_false,
        ),
        Key(
            "timewheelSegmentBytes",
            str(64 * _MIB),
            "Bytes of a segment of the delay store's journal.",
            a_whole_number(256, 2**32 - 1),
        ),
        Key(
            "timewheelNearMs",
            "30000",
            "Messages due within this many milliseconds are delivered from the journal, not copied into a run.",
            _MS,
        ),
        Key(
            "timewheelNearBytes",
            str(256 * _MIB),
            "Bytes of closed journal segments above which messages are copied into runs sooner.",
            a_whole_number(0, 2**50),
        ),
        Key(
            "timewheelNearRecords",
            "500000",
            "Records in closed journal segments above which messages are copied into runs sooner.",
            a_whole_number(1, 2**31 - 1),
        ),
        Key(
            "timewheelRunsMax", "256", "Number of runs above which the smallest are merged.", a_whole_number(2, 100_000)
        ),
        Key("timewheelMergeWidth", "32", "Most runs merged at once.", a_whole_number(2, 10_000)),
        Key("timewheelPageBytes", "8192", "Bytes of a page of a run's columns.", a_whole_number(64, 2**20)),
        Key(
            "timewheelPunchBytes",
            str(4 * _MIB),
            "Delivered bytes of a run from which on their disk space is freed.",
            a_whole_number(1, 2**50),
        ),
        Key(
            "timewheelCacheBytes",
            str(8 * _MIB),
            "Most bytes of runs' pages that are kept in memory.",
            a_whole_number(0, 2**40),
        ),
        Key(
            "timewheelReserveBytes",
            str(256 * _MIB),
            "Bytes of free disk space that timed sends must leave.",
            a_whole_number(0, 2**50),
        ),
        Key(
            "timewheelVerdictHours",
            "24",
            "Hours after its due time for which the broker remembers that a message was cancelled (of at most "
            "4,194,304 cancels: the oldest go first).",
            _VERDICT_H,
        ),
        Key(
            "timewheelDelayKeysMax",
            "1000000",
            "Most delay keys in memory. If all of them are in use, sends with another key are refused.",
            a_whole_number(1, 10**8),
        ),
        Key("timewheelPendingMax", "0", "Most pending messages. 0: no limit.", a_whole_number(0, 10**12)),
        Key("timewheelPendingBytesMax", "0", "Most bytes of pending messages. 0: no limit.", _PENDING_BYTES),
        Key(
            "timewheelTopicPendingMax",
            "0",
            "Most pending messages of one topic. 0: no limit.",
            a_whole_number(0, 10**12),
        ),
        Key(
            "timewheelTopicPendingBytesMax",
            "0",
            "Most bytes of pending messages of one topic. 0: no limit.",
            _PENDING_BYTES,
        ),
        Key("timewheelArmedRecords", "8192", "Most messages in the timing wheel.", a_whole_number(1, 2**31 - 1)),
        Key(
            "timewheelHotRecords",
            "1024",
            "If more messages than this are due at once, the recovery thread delivers most of them.",
            a_whole_number(1, 2**31 - 1),
        ),
        Key(
            "timewheelBatchRecords",
            "500",
            "Most messages in one batch of deliveries. More than 500 make a hot second slower.",
            a_whole_number(1, 65_536),
        ),
        Key("aclFile", "", "File with the access rules. Empty: config/plain_acl.yml in the store directory.", any_text),
        Key(
            "lockMaxLiveTime",
            "60000",
            "Milliseconds without renewal after which an ordered queue's lock expires (Apache: a Java property).",
            _MS,
        ),
        Key(
            "connectionBytesMax",
            str(256 * _MIB),
            "Most bytes buffered for all connections together: unfinished requests, waiting requests, and "
            "replies that clients have not read. Above it, the connections with the most bytes are closed.",
            a_whole_number(_MIB, 2**50),
        ),
        Key(
            "maxAutoCreateTopicNum",
            "20000",
            "Number of topics, of all kinds, from which on sends create no more.",
            a_whole_number(0, 10_000_000),
            Live.BOUNDS,
        ),
        Key(
            "maxAutoCreateSubscriptionGroupNum",
            "10000",
            "Number of groups from which on unknown groups are not created.",
            a_whole_number(0, 10_000_000),
            Live.BOUNDS,
        ),
        Key(
            "maxConsumerOffsetNum",
            "500000",
            "Most consumer offsets: one for each queue that a group reads.",
            a_whole_number(1, 100_000_000),
            Live.BOUNDS,
        ),
        Key(
            "maxUndecidedTransactionNum",
            "500000",
            "Most undecided half messages. Further ones get SYSTEM_BUSY.",
            a_whole_number(0, 100_000_000),
            Live.READ,
        ),
        Key("logDir", "", "Directory of the log files. Empty: logs in the store directory.", any_text),
        Key("logLevel", "INFO", "Lowest level that is logged.", one_of("DEBUG", "INFO", "WARNING", "ERROR"), Live.LOG),
        Key(
            "logFileBytes",
            str(64 * _MIB),
            "Bytes of a log file. A full one is closed, and a new one is started.",
            _LOG_BYTES,
        ),
        Key("logFileCount", "10", "Number of old log files that are kept.", a_whole_number(1, 10_000)),
    )
}
"""Keys that Apache's broker does not know."""
