"""The plug-in's threads: their clock, their pace, and the loop around a step."""
