"""Connections: sockets, TLS, dispatching frames to processors and back, and the table of connected clients."""
