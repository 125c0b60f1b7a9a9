"""Frames and rows of the spill store: their format, and what all kinds of sources have in common."""
