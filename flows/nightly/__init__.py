"""A run every night: compared with the one before; told in one message where something regressed, else promoted."""
