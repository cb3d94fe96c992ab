"""Optional: SubNets whose segments run on several devices."""
