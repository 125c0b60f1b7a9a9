"""Connections: the sockets, TLS, the frames' way to a processor and back, who is connected."""
