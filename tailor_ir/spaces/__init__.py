"""The SubNets of a network: variables, their choices, configs and codes, and the sizes under a config."""
