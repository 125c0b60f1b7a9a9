"""What runs leave for the next one (``--state DIR``): sums of closed segments, what waits, what is finished."""
