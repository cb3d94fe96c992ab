"""Accuracies of SubNets, each with BatchNorm statistics of its own."""
