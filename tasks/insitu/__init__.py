"""Operators timed where they run: layer by layer inside a few SubNets that together have all of them."""
