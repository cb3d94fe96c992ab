"""Operators timed in situ: layer by layer inside a few SubNets that together contain all operators."""
