"""Puts into the store, and the protocols by which plug-ins take part in them."""
