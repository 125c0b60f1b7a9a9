"""What became of each message, and how many share each figure: NumPy over rows."""
