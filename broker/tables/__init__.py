"""The broker's tables: topics, groups, offsets, locks; and the thread that writes them."""
