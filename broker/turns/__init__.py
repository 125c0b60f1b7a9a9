"""Turns: what one round of the network loop accepts is stored and answered together."""
