"""Files of the store: the only access to the disk, segments, checkpoint, flusher."""
