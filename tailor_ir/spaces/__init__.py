"""Which SubNets a network has: variables, their choices, configs and codes, and what a config means for sizes."""
