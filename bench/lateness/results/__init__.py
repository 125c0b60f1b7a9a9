"""The result folder: its names and units, exact percentiles, expectations, and one result beside another."""
