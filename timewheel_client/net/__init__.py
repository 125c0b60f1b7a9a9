"""Connections to brokers and name servers, and what one client shares among them."""
