"""Passes over the IR's graph: each takes a graph with its tensors and returns an equivalent network in another form."""
