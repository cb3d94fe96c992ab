"""SubNets in adapted form: their own BatchNorm statistics and tensors, beside the shared weights, and in side files."""
