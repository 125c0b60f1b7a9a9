"""The CommitLog: appending, reading, scanning, proving and repairing it."""
