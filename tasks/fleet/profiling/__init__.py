"""Devices of one kind share one look-up table: each measures a few operators, and the odd one out is found by them."""
