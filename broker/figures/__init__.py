"""Counters and rates of the broker's traffic."""
