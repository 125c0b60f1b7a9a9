"""The configuration keys that this broker uses: one table with kind, default, bounds, meaning, and what a change needs.

Names and defaults are Apache's (``BrokerConfig``, ``MessageStoreConfig``, ``NettyServerConfig`` of 5.5.0) unless
the key is marked as our own. The table is what `broker.config.broker_config` checks values against and what
``docs/configuration.md`` lists; a test keeps the two equal.
"""

from __future__ import annotations

from broker.config.key import Key, Live
from broker.config.values import (
    a_master,
    a_master_id,
    a_name,
    a_path,
    a_token,
    a_url,
    a_whole_number,
    addresses,
    an_address,
    any_text,
    hours,
    ipv4,
    labels,
    levels,
    no_dledger,
    one_of,
    one_path,
    optional_ipv4,
    parse_address,
    parse_addresses,
    plugin_names,
    true_or_false,
)

__all__ = ["LIVE_KEYS", "OWN_KEYS", "USED_KEYS", "parse_address", "parse_addresses"]


_PORT = a_whole_number(0, 65535)
_COUNT = a_whole_number(1, 10_000_000)
_MS = a_whole_number(1, 2**31 - 1)
_VERDICT_H = a_whole_number(1, 24 * 366)
_PENDING_BYTES = a_whole_number(0, 2**60)
_PERCENT = a_whole_number(1, 100)
_MIB = 1 << 20
_LOG_BYTES = a_whole_number(4096, 2**40)

_BROKER = (
    Key("brokerClusterName", "DefaultCluster", "Cluster that the routes name.", a_name),
    Key("brokerName", "broker-a", "Name of this broker in the routes (Apache: the host's name).", a_name),
    Key("brokerId", "0", "Must be 0: there are no slaves.", a_master_id),
    Key("brokerRole", "ASYNC_MASTER", "ASYNC_MASTER or SYNC_MASTER, which are the same here.", a_master),
    Key("brokerPermission", "6", "4 readable, 2 writable, 6 both.", one_of("2", "4", "6"), Live.READ),
    Key("brokerIP1", "", "IPv4 address that clients are told to dial. Empty: the listening address.", optional_ipv4),
    Key("bindAddress", "127.0.0.1", "IPv4 address to listen on. 0.0.0.0 when only brokerIP1 is set.", ipv4),
    Key("listenPort", "10911", "Port; the VIP port is this minus 2. 0: any free port, without a VIP port.", _PORT),
    Key("serverSocketBacklog", "1024", "Connections that may wait to be accepted.", a_whole_number(1, 65535)),
    Key(
        "serverChannelMaxIdleTimeSeconds",
        "120",
        "Seconds until a silent connection is closed.",
        a_whole_number(1, 86400),
    ),
    Key("channelExpiredTimeout", "120000", "Milliseconds without heartbeat after which a client is gone.", _MS),
    Key("namesrvAddr", "", "External name servers to register with. Set: no embedded one is started.", addresses),
    Key("registerNameServerPeriod", "30000", "Milliseconds between registrations, 10 s to 60 s.", _MS),
    Key("registerBrokerTimeoutMills", "24000", "Milliseconds that one registration may take.", _MS),
    Key("aclEnable", "false", "Serve signed requests only, by the rules of `aclFile`.", true_or_false),
    Key("autoCreateTopicEnable", "true", "The first send to an unknown topic creates it.", true_or_false, Live.TOPICS),
    Key(
        "defaultTopicQueueNums", "8", "Most queues of a topic created by a send.", a_whole_number(1, 65536), Live.TOPICS
    ),
    Key(
        "autoCreateSubscriptionGroup",
        "true",
        "The first heartbeat of an unknown group creates it.",
        true_or_false,
        Live.GROUPS,
    ),
    Key("flushConsumerOffsetInterval", "5000", "Milliseconds between writes of consumerOffset.json.", _MS),
    Key(
        "longPollingEnable", "true", "Hold pulls that find nothing until there is something.", true_or_false, Live.READ
    ),
    Key(
        "enablePropertyFilter",
        "false",
        "Serve SQL92 subscriptions ([filtering.md](filtering.md)).",
        true_or_false,
        Live.READ,
    ),
    Key("recallMessageEnable", "false", "Give out handles to recall timed messages, and serve recalls.", true_or_false),
    Key(
        "notifyConsumerIdsChangedEnable",
        "true",
        "Tell a group's members when one comes or goes.",
        true_or_false,
        Live.READ,
    ),
    Key(
        "sendThreadPoolQueueCapacity",
        "10000",
        "Sends that may wait for the disk (SYNC_FLUSH); more get SYSTEM_BUSY.",
        a_whole_number(1, 10_000_000),
    ),
    Key(
        "waitTimeMillsInSendQueue",
        "200",
        "Milliseconds that a send may wait to be read; after that it gets SYSTEM_BUSY.",
        _MS,
    ),
    Key(
        "pullThreadPoolQueueCapacity",
        "100000",
        "Pulls that may wait for messages or the disk; more get SYSTEM_BUSY.",
        a_whole_number(1, 10_000_000),
    ),
    Key(
        "defaultMessageRequestMode",
        "PULL",
        "Whether groups without a mode (`mqadmin setConsumeMode`) pull or pop, if the broker balances them.",
        one_of("PULL", "POP"),
        Live.READ,
    ),
    Key(
        "defaultPopShareQueueNum",
        "-1",
        "The number of other members' queues that a member of such a group pops; 0 or less: all queues.",
        a_whole_number(-(2**31), 2**31 - 1),
        Live.READ,
    ),
    Key(
        "serverLoadBalancerEnable",
        "true",
        "Deal a topic's queues out to members who ask the broker; `false`: each gets all queues.",
        true_or_false,
        Live.READ,
    ),
    Key(
        "loadBalancePollNameServerInterval",
        "30000",
        "Milliseconds for which an external name server's queues of a topic count, when they are dealt out.",
        _MS,
    ),
    Key("popInflightMessageThreshold", "10000", "Most messages of a queue that a group holds.", _COUNT, Live.READ),
    Key(
        "replyThreadPoolQueueCapacity",
        "10000",
        "Requests that may wait for a client's answer or the disk (replies of request-reply, send-backs, "
        "administrators' questions to clients); more get SYSTEM_BUSY.",
        a_whole_number(1, 10_000_000),
    ),
    Key("rejectTransactionMessage", "false", "Refuse transactions' half messages.", true_or_false, Live.READ),
    Key(
        "transactionTimeOut",
        "6000",
        "Age in milliseconds at which an undecided transaction is checked.",
        _MS,
        Live.READ,
    ),
    Key(
        "transactionCheckMax", "15", "Checks until a transaction is given up.", a_whole_number(1, 2**31 - 1), Live.READ
    ),
    Key("transactionCheckInterval", "30000", "Milliseconds between two rounds of checks.", _MS, Live.READ),
    Key(
        "storeReplyMessageEnable",
        "true",
        "Store replies of request-reply in their topic as well.",
        true_or_false,
        Live.READ,
    ),
    Key("regionId", "DefaultRegion", "MSG_REGION of replies.", a_name),
    Key("traceOn", "true", "TRACE_ON of replies: clients may send traces.", true_or_false),
    Key("traceTopicEnable", "false", "Create the trace topic at start.", true_or_false),
    Key(
        "metricsExporterType",
        "DISABLE",
        "PROM: metrics for Prometheus ([metrics.md](metrics.md)). OTLP_GRPC and LOG export nothing here.",
        one_of("DISABLE", "PROM", "OTLP_GRPC", "LOG", "0", "1", "2", "3"),
    ),
    Key("metricsPromExporterHost", "", "Where they are scraped. Empty: the broker's address.", optional_ipv4),
    Key("metricsPromExporterPort", "5557", "The port.", _PORT),
    Key("metricsLabel", "", "Labels for every series: name:value,name:value.", labels),
    Key("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC", "Name of the trace topic.", a_name),
)

_TLS = (
    Key(
        "tls.server.mode",
        "permissive",
        "With a certificate: TLS and plain connections, TLS only, or plain only.",
        one_of("permissive", "enforcing", "disabled"),
    ),
    Key("tls.server.certPath", "", "PEM file with the certificate, or its chain. Empty: no TLS.", any_text),
    Key("tls.server.keyPath", "", "PEM file with its private key. Empty: in the same file.", any_text),
    Key("tls.server.keyPassword", "", "Password of the key, if it has one.", any_text),
    Key(
        "tls.server.need.client.auth",
        "none",
        "Whether clients must show a certificate.",
        one_of("none", "optional", "require"),
    ),
    Key("tls.server.authClient", "false", "The same as need.client.auth=require.", true_or_false),
    Key("tls.server.trustCertPath", "", "PEM file with the authorities that client certificates come from.", any_text),
)

_STORE = (
    Key("storePathRootDir", "", "Store directory (option --store).", a_path),
    Key("storePathCommitLog", "", "CommitLog directory. Empty: commitlog in the store directory.", one_path),
    Key("flushDiskType", "ASYNC_FLUSH", "SYNC_FLUSH: reply after a sync.", one_of("ASYNC_FLUSH", "SYNC_FLUSH")),
    Key("flushIntervalCommitLog", "500", "ASYNC_FLUSH: milliseconds between syncs.", a_whole_number(1, 60_000)),
    Key("mappedFileSizeCommitLog", str(1 << 30), "Bytes of a CommitLog segment.", a_whole_number(4096, 2**31 - 1)),
    Key("mappedFileSizeConsumeQueue", "6000000", "Bytes of a ConsumeQueue file.", a_whole_number(20, 2**31 - 1)),
    Key("maxMessageSize", str(4 * _MIB), "Most bytes of a message.", a_whole_number(1, 15 * _MIB)),
    Key(
        "messageDelayLevel",
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "Delays of the levels 1, 2, …",
        levels,
    ),
    Key(
        "fileReservedTime",
        "72",
        "Hours that a CommitLog segment is kept.",
        a_whole_number(0, 1_000_000),
        Live.RETENTION,
    ),
    Key("deleteWhen", "04", "Hours of the day in which old segments are deleted.", hours, Live.RETENTION),
    Key(
        "diskMaxUsedSpaceRatio",
        "75",
        "Used percent of the disk above which old segments are deleted at any hour.",
        _PERCENT,
        Live.RETENTION,
    ),
    Key(
        "diskSpaceCleanForciblyRatio",
        "85",
        "Used percent above which segments are deleted before their time; a warning.",
        _PERCENT,
        Live.RETENTION,
    ),
    Key(
        "diskSpaceWarningLevelRatio",
        "90",
        "Used percent above which sends are refused, timed ones too.",
        _PERCENT,
        Live.RETENTION,
    ),
    Key("deleteFileBatchMax", "10", "Most segments deleted by one pass.", a_whole_number(1, 1_000_000), Live.RETENTION),
    Key(
        "cleanFileForciblyEnable",
        "true",
        "Whether segments may be deleted before their time.",
        true_or_false,
        Live.RETENTION,
    ),
    Key(
        "defaultQueryMaxNum",
        "32",
        "Most messages returned by a query by unique key.",
        a_whole_number(1, 10_000),
        Live.QUERY,
    ),
    Key(
        "maxTransferBytesOnMessageInMemory", "262144", "Most bytes of a pull.", a_whole_number(1, 15 * _MIB), Live.PULL
    ),
    Key("maxTransferCountOnMessageInMemory", "32", "Most messages of a pull.", a_whole_number(1, 100_000), Live.PULL),
    Key(
        "maxTransferBytesOnMessageInDisk",
        "65536",
        "Most bytes of a pull from files that are not in memory.",
        a_whole_number(1, 15 * _MIB),
        Live.PULL,
    ),
    Key(
        "maxTransferCountOnMessageInDisk",
        "8",
        "Most messages of a pull from files that are not in memory.",
        a_whole_number(1, 100_000),
        Live.PULL,
    ),
    Key("timerPrecisionMs", "1000", "Apache's own timer: read only to find its pending messages.", _MS),
    Key("enableDLegerCommitLog", "false", "Must be false.", no_dledger),
    Key(
        "timerMaxDelaySec",
        "",
        "Longest delay in seconds. Unset (not 3 days, as Apache has it): no limit.",
        a_whole_number(1, 2**40),
    ),
)

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

USED_KEYS: dict[str, Key] = {key.name: key for key in (*_BROKER, *_TLS, *_STORE, *OWN_KEYS.values())}
"""All keys that have an effect here."""

LIVE_KEYS = frozenset(name for name, key in USED_KEYS.items() if key.live is not None)
"""The keys that can be changed while the broker runs."""
