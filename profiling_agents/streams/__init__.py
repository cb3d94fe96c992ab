"""Streams of tensors over one kept connection: frames with lengths and checksums, and the coding of tensors in them."""
