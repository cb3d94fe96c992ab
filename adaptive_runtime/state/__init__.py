"""The state of a device: sensed, slowed down, forecast, and recorded as traces."""
