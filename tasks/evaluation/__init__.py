"""Accuracies of SubNets, each with its own BatchNorm statistics."""
