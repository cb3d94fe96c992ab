"""Least squares on what layers read: moments of it, weights that give the same results, the last layer of an alternative."""
