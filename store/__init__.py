"""Bytes on disk: CommitLog, ConsumeQueues, key index, level scheduler, spill store; and the hook for plug-ins."""
