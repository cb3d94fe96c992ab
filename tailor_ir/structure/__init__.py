"""The structure of a network: axes of its values, blocks and stages, legal resolutions."""
