"""A run every night, compared with the night before: regressions are reported in one message, other nights are promoted."""
