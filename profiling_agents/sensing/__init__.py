"""The state of a device, as its system reports it: cores, clocks, caches, energy, pace. Needs `messages` alone."""
