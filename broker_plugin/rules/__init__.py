"""The rules of delayed messages: due times, states, key ranges, counters. No thread, no file, no clock."""
