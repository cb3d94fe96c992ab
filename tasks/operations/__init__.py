"""Optional: operations of a house with many runs and devices: nights and the fleet."""
