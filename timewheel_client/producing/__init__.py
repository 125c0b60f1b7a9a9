"""Sending messages, and taking delayed ones back."""
