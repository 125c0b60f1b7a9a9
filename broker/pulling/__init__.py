"""Requests that read messages, and what they wait for."""
