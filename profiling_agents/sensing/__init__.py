"""The state of a device, as its system tells it: cores, clocks, caches, energy, pace. Needs `messages` alone."""
