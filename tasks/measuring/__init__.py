"""Measurements of whole SubNets on devices: jobs for agents, identical devices as one fleet, latencies as on a calm device."""
