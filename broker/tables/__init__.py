"""What the broker remembers by name: topics, groups, offsets, locks; and the thread that writes it."""
