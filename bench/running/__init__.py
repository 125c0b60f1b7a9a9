"""One run: the machine, and a system under load."""
