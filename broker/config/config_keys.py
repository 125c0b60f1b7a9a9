"""The configuration keys that this broker uses: a table with kind, default, bounds, meaning, and what a change needs.

Names and defaults are Apache's (``BrokerConfig``, ``MessageStoreConfig``, ``NettyServerConfig`` of 5.5.0), but for the
keys of `broker.config.own_keys`. The table is what `broker.config.broker_config` checks values against and what
``docs/configuration.md`` lists; a test keeps the two equal.
"""

from __future__ import annotations

from broker.config.key import Key, Live
from broker.config.own_keys import OWN_KEYS
from broker.config.values import (
    a_master,
    a_master_id,
    a_name,
    a_path,
    a_whole_number,
    addresses,
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
    true_or_false,
)

__all__ = ["LIVE_KEYS", "USED_KEYS", "parse_address", "parse_addresses"]


_PORT = a_whole_number(0, 65535)
_COUNT = a_whole_number(1, 10_000_000)
_MS = a_whole_number(1, 2**31 - 1)
_PERCENT = a_whole_number(1, 100)
_MIB = 1 << 20

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
    Key(
        "mappedFileSizeCommitLog",
        str(1 << 30),
        "Bytes of a CommitLog segment. A record that is sent may have 392 bytes less.",
        a_whole_number(4096, 2**31 - 1),
    ),
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

USED_KEYS: dict[str, Key] = {key.name: key for key in (*_BROKER, *_TLS, *_STORE, *OWN_KEYS.values())}
"""All keys that have an effect here."""

LIVE_KEYS = frozenset(name for name, key in USED_KEYS.items() if key.live is not None)
"""The keys that can be changed while the broker runs."""
