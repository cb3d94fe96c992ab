"""Devices of one kind share one look-up table: each measures a few operators, which also reveal outliers."""
