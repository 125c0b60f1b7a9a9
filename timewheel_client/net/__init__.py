"""Connections to brokers and name servers, and the parts that producers and consumers share."""
