"""Settings: keys, the configuration file, changes while the broker runs, and logging."""
