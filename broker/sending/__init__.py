"""Requests that put messages: send, reply, send back, recall."""
