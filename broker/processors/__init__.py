"""Processors: one file for each family of requests, as in Apache's broker."""
