"""The operators of SubNets, read off the axes: what a device executes, and all that any SubNet has."""
