"""Least squares on the inputs of layers: moments, weights that give the same results, the last layer of an alternative."""
