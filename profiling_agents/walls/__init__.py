"""Walls around the process in which foreign models run. Standard library only: they stand before anything else loads."""
