"""The state of each message, and the counts of each figure: NumPy over rows."""
