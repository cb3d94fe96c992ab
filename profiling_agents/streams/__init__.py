"""Streams of tensors over one kept connection: frames with lengths and checksums, and how tensors are coded in them."""
