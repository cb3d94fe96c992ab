"""The operators of SubNets as a device executes them, derived from the axes; and the unique operators of all SubNets."""
