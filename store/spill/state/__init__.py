"""Which sources there are, in memory and in the directory on the disk."""
