"""What is derived from the CommitLog: ConsumeQueues, the key index, and how far they have got."""
