"""Files derived from the CommitLog: ConsumeQueues, the key index, and up to where both are complete."""
