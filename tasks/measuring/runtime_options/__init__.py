"""The engine of a device: its runtime's options for whole networks, each kept if it is measured to be faster."""
