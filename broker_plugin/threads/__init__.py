"""Threads of the plug-in: their clock, their pace, and the shell round a step."""
