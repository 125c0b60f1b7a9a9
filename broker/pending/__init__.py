"""Pending messages: their names, and requests about them."""
