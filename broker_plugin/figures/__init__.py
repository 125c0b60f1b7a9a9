"""Counters by topic, and the metrics of the plug-in."""
