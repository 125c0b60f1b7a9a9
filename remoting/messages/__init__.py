"""Messages and records: batches, properties, keys, the record of the CommitLog and its proof."""
