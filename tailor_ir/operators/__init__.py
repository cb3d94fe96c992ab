"""The operators of SubNets, read off the axes, as a device executes them; and the unique operators of all SubNets."""
