"""A deployed network as files: bundles with their manifests, and chains of segments that run them."""
