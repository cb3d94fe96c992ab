"""What every service of the house shares: address, token, TLS, the guard in front of its routes, a clean end."""
