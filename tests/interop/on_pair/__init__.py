"""Tests that tell one story to our broker and to Apache's at the same time, and share one of each."""
