"""What a delayed message may do, and what is counted of it: no thread, no file, no clock."""
