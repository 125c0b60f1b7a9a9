"""Files and what every part of the store keeps in them: the door to the disk, segments, checkpoint, flusher."""
