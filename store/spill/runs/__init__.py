"""Runs, the sorted files that journal segments become."""
