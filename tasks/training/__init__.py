"""Training: base networks, SuperNets compiled from them and fine-tuned, in one stage or two, within a budget of memory."""
