"""Drawings as inline SVG, with their axes: curves, heat maps, bars."""
