"""Settings: keys, the file they stand in, which may change while the broker runs, and logging."""
