"""Optional: operations of a house with many runs and devices: nights, backups, and the fleet."""
