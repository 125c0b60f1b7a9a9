"""What the broker counts of its traffic."""
