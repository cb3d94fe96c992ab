"""A bundle that serves and adapts: `adaptive_runtime.load`."""
