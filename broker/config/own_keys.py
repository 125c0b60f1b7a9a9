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
        Key("plugins", "delay", "Plug-ins: names or package.module:Class between commas; empty: none.", plugin_names),
        Key("namesrvListen", "127.0.0.1:9876", "Where the embedded name server listens; empty: nowhere.", an_address),
        Key("httpListen", "", "Where HTTP is served ([http.md](http.md)); empty: nowhere.", an_address),
        Key("httpToken", "", "Who shows it as a bearer token may see and change what is pending.", a_token),
        Key("timewheelTraceEndpoint", "", "URL for spans by OTLP ([metrics.md](metrics.md)); empty: none.", a_url),
        Key("vipChannelEnable", "true", "Listen on the VIP port as well.", true_or_false),
        Key("autoCreateTopicOnRoute", "false", "A route lookup creates an unknown topic (for ali-ons).", true_or_false),
        Key("timewheelSegmentBytes", str(64 * _MIB), "Bytes of a journal segment.", a_whole_number(256, 2**32 - 1)),
        Key("timewheelNearMs", "30000", "Messages due within this many milliseconds are not copied into runs.", _MS),
        Key("timewheelNearBytes", str(256 * _MIB), "Most bytes of closed journal segments.", a_whole_number(0, 2**50)),
        Key("timewheelNearRecords", "500000", "Most records in closed journal segments.", a_whole_number(1, 2**31 - 1)),
        Key("timewheelRunsMax", "256", "Runs above which the smallest are merged.", a_whole_number(2, 100_000)),
        Key("timewheelMergeWidth", "32", "Runs merged at once.", a_whole_number(2, 10_000)),
        Key("timewheelPageBytes", "8192", "Bytes of a page of a run's columns.", a_whole_number(60, 2**20)),
        Key(
            "timewheelPunchBytes",
            str(4 * _MIB),
            "Least delivered bytes of a run for which a hole is punched.",
            a_whole_number(1, 2**50),
        ),
        Key(
            "timewheelCacheBytes",
            str(8 * _MIB),
            "Bytes of pages of runs that are kept in memory.",
            a_whole_number(0, 2**40),
        ),
        Key("timewheelReserveBytes", str(256 * _MIB), "Disk space that sends may not take.", a_whole_number(0, 2**50)),
        Key(
            "timewheelVerdictHours",
            "24",
            "So long after it was due it is known that a message was cancelled.",
            _VERDICT_H,
        ),
        Key("timewheelDelayKeysMax", "1000000", "Most delay keys that are known at once.", a_whole_number(1, 10**8)),
        Key("timewheelPendingMax", "0", "Most messages pending; 0: any number.", a_whole_number(0, 10**12)),
        Key("timewheelPendingBytesMax", "0", "Most bytes pending; 0: any number.", _PENDING_BYTES),
        Key(
            "timewheelTopicPendingMax",
            "0",
            "Most messages pending of one topic; 0: any number.",
            a_whole_number(0, 10**12),
        ),
        Key("timewheelTopicPendingBytesMax", "0", "Most bytes pending of one topic; 0: any number.", _PENDING_BYTES),
        Key("timewheelArmedRecords", "8192", "Most messages in the wheel.", a_whole_number(1, 2**31 - 1)),
        Key(
            "timewheelHotRecords",
            "1024",
            "If more messages than this are due at once, recovery delivers most of them.",
            a_whole_number(1, 2**31 - 1),
        ),
        Key("timewheelBatchRecords", "512", "Most messages of one delivery.", a_whole_number(1, 65_536)),
        Key("aclFile", "", "The access rules. Empty: config/plain_acl.yml in the store directory.", any_text),
        Key(
            "lockMaxLiveTime",
            "60000",
            "Milliseconds without renewal after which an ordered queue's lock expires (Apache: a Java property).",
            _MS,
        ),
        Key(
            "connectionBytesMax",
            str(256 * _MIB),
            "Most bytes of unfinished requests, waiting requests and replies not taken, of all "
            "connections together; beyond it the connections with the most are closed.",
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
            "Number of groups from which on unknown ones are not created.",
            a_whole_number(0, 10_000_000),
            Live.BOUNDS,
        ),
        Key(
            "maxConsumerOffsetNum",
            "500000",
            "Most consumer offsets, of all groups in all queues.",
            a_whole_number(1, 100_000_000),
            Live.BOUNDS,
        ),
        Key(
            "maxUndecidedTransactionNum",
            "500000",
            "Most undecided half messages; more get SYSTEM_BUSY.",
            a_whole_number(0, 100_000_000),
            Live.READ,
        ),
        Key("logDir", "", "Directory of the log. Empty: logs in the store directory.", any_text),
        Key("logLevel", "INFO", "Lowest level that is logged.", one_of("DEBUG", "INFO", "WARNING", "ERROR"), Live.LOG),
        Key("logFileBytes", str(64 * _MIB), "Bytes of a log file; then a new one is started.", _LOG_BYTES),
        Key("logFileCount", "10", "Old log files that are kept.", a_whole_number(1, 10_000)),
    )
}
"""Keys that Apache's broker does not know."""
