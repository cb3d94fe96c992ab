"""Refinement: the best candidates of every budget are evaluated and timed; measurements choose the winners."""
