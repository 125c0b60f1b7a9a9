"""Filters of subscriptions: tags, or SQL92 made of tokens, values and nodes."""
