"""What is read: stores where they lie, CommitLog records, the delay store's files, as rows."""
