"""Tests that say the same of our broker and of Apache's, and share one of each and the processes beside it."""
