"""What the plug-in counts by topic, and its metrics."""
