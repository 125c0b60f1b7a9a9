"""Pending messages of all brokers of a cluster: seen, counted, changed."""
