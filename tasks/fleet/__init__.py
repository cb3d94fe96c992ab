"""Many devices as one fleet: bundles that reach a few of them first, and all of them when nothing has become worse."""
