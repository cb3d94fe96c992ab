"""The shared parts of every service: address, token, TLS, the guard in front of its routes, a clean end."""
