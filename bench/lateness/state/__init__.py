"""The state that a run leaves for the next one (``--state DIR``): sums of closed segments, waiting and finished ids."""
