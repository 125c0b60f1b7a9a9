"""Popped messages, which come again unless they are acknowledged in time."""
