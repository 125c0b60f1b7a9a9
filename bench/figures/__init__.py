"""Figures of a benchmark: statistics, results, tables."""
