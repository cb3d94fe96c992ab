"""Random networks of all operators, and what must hold of each of them when it is compiled."""
