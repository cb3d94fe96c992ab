"""From a user's network to the IR's graph: traced or loaded, constants folded, forms normalised."""
