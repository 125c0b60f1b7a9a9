"""Opening, checking and repairing a spill store; sorting, merging and removing its files."""
