"""The keys of Apache's ``broker.conf`` that are accepted and have no effect here.

A file that worked for Apache's broker must work unchanged, so these keys are neither errors nor typing mistakes: at
start the log names those that a file sets. The list comes from the setters of the classes named below in Apache
RocketMQ 5.5.0 and 4.9.8 (``MixAll.properties2Object`` fills them by reflection), plus keys in Apache's own example
files that its broker ignores.
"""

from __future__ import annotations

__all__ = ["NO_EFFECT_GROUPS", "NO_EFFECT_KEYS", "WARNINGS"]

# BrokerConfig, BrokerIdentity
_BROKER = """
    accountStatsEnable accountStatsPrintZeroValues ackMessageThreadPoolNums ackThreadPoolQueueCapacity
    adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity allowRecallWhenBrokerNotWriteable appendAckAsync
    appendCkAsync asyncSendEnable autoDeleteUnusedStats broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond
    brokerConfigPath brokerElectionPriority brokerFastFailureEnable brokerHeartbeatInterval brokerIP2
    brokerNotActiveTimeoutMillis brokerTopicEnable cgColdReadThreshold checkSyncStateSetPeriod
    cleanOfflineBrokerInterval clearRetryTopicWhenDeleteTopic clientManageThreadPoolNums
    clientManagerThreadPoolQueueCapacity clusterTopicEnable coldCtrStrategyEnable commercialBaseCount
    commercialBigCount commercialEnable commercialSizePerMsg commercialTimerCount commercialTransCount
    compatibleWithOldNameSrv compressedRegister configBlackList configManagerVersion consumerFallbehindThreshold
    consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity consumerOffsetUpdateVersionStep
    controllerAddr controllerHeartBeatTimeoutMills
    delayOffsetUpdateVersionStep disableConsumeIfConsumerReadSlowly enableBroadcastOffsetStore
    enableCalcFilterBitMap enableConnectionMetrics enableControllerMode enableCreateSysGroup enableDetailStat
    enableFastChannelEventProcess enableLagAndDlqMetrics enableLiteEventMode enableLitePopLog enableLmqStats
    enableMessageStoreMetrics enableMixedMessageType enableNetWorkFlowControl enableNotifyAfterPopOrderLockRelease
    enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge enablePopLog enablePopMessageThreshold
    enablePopMetrics enableRegisterProducer enableRemoteEscape enableRemotingMetrics
    enableRequestMetrics enableRetryTopicV2 enableSingleTopicRegister enableSkipLongAwaitingAck
    enableSlaveActingMaster enableSplitMetadata enableSplitRegistration enableStatsMetrics enableTransactionMetrics
    endTransactionPoolQueueCapacity endTransactionThreadPoolNums estimateAccumulation expectConsumerNumUseFilter
    fetchControllerAddrByDnsLookup fetchNameSrvAddrByDnsLookup fetchNamesrvAddrByAddressServer
    fetchNamesrvAddrInterval filterDataCleanTimeSpan filterServerNums filterSupportRetry
    flushConsumerOffsetHistoryInterval forceRegister forwardTimeout globalColdReadThreshold heartbeatThreadPoolNums
    heartbeatThreadPoolQueueCapacity highSpeedMode inBrokerContainer initPopOffsetByCheckMsgInMem isolateLogEnable
    liteEventCheckInterval liteEventFullDispatchDelayTime liteEventFullDispatchDelayTimeForWildcardGroup
    liteLagCountMetricsEnable liteLagLatencyCollectEnable liteLagLatencyMetricsEnable liteLagLatencyTopK
    litePullMessageEnable litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity
    liteSubscriptionCheckInterval liteSubscriptionCheckTimeoutMills liteTtlCheckInterval
    loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity
    lockInStrictMode maxClientEventCount maxDelayTime maxErrorRateOfBloomFilter maxLiteSubscriptionCount
    maxMessageFilterNumForNotification maxPopPollingSize maxStatsIdleTimeInMinutes messageStorePlugIn
    metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
    metricsExportBatchMaxDataPoints metricsGrpcExporterHeader metricsGrpcExporterTarget
    metricsInDelta metricsOtelCardinalityLimit
    minLiteTTl persistConsumerOffsetIncrementally popCkMaxBufferSize popCkOffsetMaxQueueSize popCkStayBufferTime
    popCkStayBufferTimeOut popConsumerFSServiceInit popConsumerKVServiceEnable popConsumerKVServiceInit
    popConsumerKVServiceLog popFromRetryProbability popFromRetryProbabilityForPriority
    popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds popPollingMapSize popPollingSize
    popResponseReturnActualRetryTopic popReviveConcurrency popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead
    popReviveSkipIfGroupAbsent printChannelGroups printChannelGroupsMinNum priorityOrderAsc
    processReplyMessageThreadPoolNums pullMessageThreadPoolNums
    putMessageFutureThreadPoolNums putThreadPoolQueueCapacity queryMessageThreadPoolNums
    queryThreadPoolQueueCapacity realTimeNotifyConsumerChange recoverConcurrently
   recoverThreadPoolNums rejectPullConsumerEnable
    retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum reviveScanTime
    rocketmqHome sendHeartbeatTimeoutMillis sendMessageThreadPoolNums
    shortPollingTimeMills skipPreOnline skipWhenCKRePutReachMaxTimes slaveReadEnable
    splitMetadataSize splitRegistrationSize startAcceptSendRequestTimeStamp
    subscriptionExpiredTimeout syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod syncControllerMetadataPeriod
    transactionCheckRocksdbCoreThreads
    transactionCheckRocksdbMaxThreads transactionCheckRocksdbQueueCapacity transactionMetricFlushInterval
    transactionOpBatchInterval transactionOpMsgMaxSize transferMsgByHeap
    updateNameServerAddrPeriod useMessageFilterForNotification usePIDColdCtrStrategy useSeparateRetryQueue
    useServerSideResetOffset useSingleRocksDBForAllConfigs useStaticSubscription validateSystemTopicWhenUpdateTopic
    waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue
    waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInTransactionQueue
"""

# MessageStoreConfig
_STORE = """
    accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio allAckInSyncStateSet appendTopicForTimerDeleteKey
    asyncLearner autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums bitMapLengthConsumeQueueExt
    bottomMostCompressionTypeForConsumeQueueStore checkCRCOnRecover checkCommitLogOffsetOnRecover
    cleanResourceInterval cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval coldDataFlowControlEnable
    coldDataScanEnable combineAssignOffsetCQType combineCQEnableCheckSelf combineCQLoadingCQTypes
    combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType combineCQUseRocksdbForLmq commitCommitLogLeastPages
    commitCommitLogThoroughInterval commitIntervalCommitLog commitLogForceSwapMapInterval commitLogRecoverMaxNum
    commitLogSwapMapInterval commitLogSwapMapReserveFileNum compactionCqMappedFileSize compactionMappedFileSize
    compactionScheduleInternal compactionThreadNum correctLogicMinOffsetForceInterval
    correctLogicMinOffsetSleepInterval dLegerGroup dLegerPeers dLegerSelfId dataReadAheadEnable debugLockEnable
    deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval destroyMapedFileIntervalForcibly
    disappearTimeAfterStart diskFallRecorded dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread
    duplicationEnable enableAcceleratedRecovery enableAsyncReput enableAutoInSyncReplicas enableBatchPush
    enableBuildConsumeQueueConcurrently enableCleanExpiredOffset enableCompaction enableConsumeQueueExt enableLmq
    enableLmqQuota enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMultiDispatch enableRocksDBLog
    enableRunningFlagsInFlush enableScheduleAsyncDeliver enableScheduleMessageStats enabledAppendPropCRC
    fastFailIfNoBufferInStorePool flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed
    flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushDelayOffsetInterval flushIntervalConsumeQueue
    flushLeastPagesWhenWarmMapedFile forceVerifyPropCRC haFlowControlEnable haHousekeepingInterval haListenPort
    haMasterAddress haMaxGapNotInSync haMaxTimeSlaveNotCatchup haSendHeartbeatInterval haSlaveFallbehindMax
    haTransferBatchSize inSyncReplicas indexFileReadEnable indexFileWriteEnable indexRocksDBEnable
    iteratorWhenUseRocksdbConsumeQueue logicQueueForceSwapMapInterval logicQueueSwapMapInterval
    logicQueueSwapMapReserveFileNum logicalDiskSpaceCleanForciblyThreshold mappedFileSizeConsumeQueueExt
    mappedFileSizeTimerLog mappedFileSwapEnable mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests
    maxBatchDeleteFilesNum maxChecksumRange maxConsumeQueueScan maxFilterMessageSize maxHaTransferByteInSecond
    maxHashSlotNum maxIndexNum maxLmqConsumeQueueNum maxMsgsNumBatch maxOffsetMapSize maxRecoveryCommitlogFiles
    maxRocksDBIndexQueryDays maxSlaveResendLength maxTopicLength memTableFlushIntervalMs messageIndexEnable
    messageIndexSafe minInSyncReplicas offsetCheckInSlave osPageCacheBusyTimeOutMills preferredLeaderId
    pullBatchMaxMessageCount putConsumeQueueDataByFileChannel putMessageTimeout putMsgIndexHightWater
    readOnlyCommitLogStorePaths readUnCommitted realTimePersistRocksDBConfig recheckReputOffsetFromCq
    redeleteHangedFileInterval replicasPerDiskPartition rocksdbCQDoubleWriteEnable rocksdbCompressionType
    rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold sampleCountThreshold sampleSteps
    scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked searchBcqByCacheEnable
    sharedByteBufferNum slaveTimeout spinLockCollisionRetreatOptimalDegree statRocksDBCQIntervalSec
    storePathBrokerIdentity storePathDLedgerCommitLog storePathEpochFile storeType syncFlushTimeout syncFromLastFile
    syncMasterFlushOffsetWhenStartup timerColdDataCheckIntervalMs timerCongestNumEachSlot timerEnableCheckMetrics
    timerEnableRetryUntilSuccess timerFlushIntervalMs timerGetMessageThreadNum timerInterceptDelayLevel
    timerMetricSmallThreshold timerProgressLogIntervalMs timerPutMessageThreadNum timerRecallToTimeWheelEnable
    timerRecallToTimelineEnable timerReputServiceCorePoolSize timerReputServiceMaxPoolSize
    timerReputServiceQueueCapacity timerRocksDBEnable timerRocksDBPrecisionMs timerRocksDBRollIntervalHours
    timerRocksDBRollMaxTps timerRocksDBRollRangeHours timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps
    timerRollWindowSlot timerSkipUnknownError timerStopEnqueue timerWheelEnable timerWheelSnapshotFlush
    timerWheelSnapshotIntervalMs topicQueueLockNum totalReplicas transRocksDBEnable transWriteOriginTransHalfEnable
    transientStorePoolEnable transientStorePoolSize travelCqFileNumWhenGetMessage useABSLock
    useReentrantLockWhenPutMessage useSeparateStorePathForRocksdbCQ wakeCommitWhenPutMessage wakeFlushWhenPutMessage
    warmMapedFileEnable writeWithoutMmap
"""

# NettyServerConfig, NettyClientConfig
_NETWORK = """
    channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads
    connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup enableReconnectForGoAway
    enableShutdownGracefully maxReconnectIntervalTimeSeconds scanAvailableNameSrv
    serverAsyncSemaphoreValue serverCallbackExecutorThreads serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds
    socksProxyConfig useEpollNativeSelector useTLS writeBufferHighWaterMark writeBufferLowWaterMark
"""

# AuthConfig
_AUTH = """
    aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond authConfigPath authenticationEnabled
    authenticationMetadataProvider authenticationProvider authenticationStrategy authenticationWhitelist
    authorizationEnabled authorizationMetadataProvider authorizationProvider authorizationStrategy
    authorizationWhitelist clusterName configName initAuthenticationUser
    innerClientAuthenticationCredentials migrateAuthFromV1Enabled statefulAuthenticationCacheExpiredSecond
    statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond
    statefulAuthorizationCacheMaxNum userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
"""

# In many files in the wild, read by no broker of 4.9 or 5.x.
_IGNORED_BY_APACHE = """
    abortFile checkTransactionMessageEnable storeCheckpoint storePathConsumeQueue storePathIndex
    useReentrantLock
"""

NO_EFFECT_GROUPS: dict[str, tuple[str, ...]] = {
    "Broker": tuple(_BROKER.split()),
    "Store": tuple(_STORE.split()),
    "Network": tuple(_NETWORK.split()),
    "Authentication": tuple(_AUTH.split()),
    "Ignored by Apache's broker too": tuple(_IGNORED_BY_APACHE.split()),
}
"""The keys, grouped by the part of Apache's broker that they set; a key is in one group only."""

NO_EFFECT_KEYS: frozenset[str] = frozenset(key for group in NO_EFFECT_GROUPS.values() for key in group)
"""All of them."""

WARNINGS: dict[str, str] = {
    "authenticationEnabled": "the users of RocketMQ 5 are not known here: use aclEnable and its file of rules",
    "authorizationEnabled": "the rules of RocketMQ 5 are not known here: use aclEnable and its file of rules",
    "enableControllerMode": "there is one broker here and no failover",
}
"""Keys whose value ``true`` promises something that a user would miss: the log warns of them by name."""
