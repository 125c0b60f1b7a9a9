"""The set of sources (journal segments and runs), in memory and in the directory on the disk."""
