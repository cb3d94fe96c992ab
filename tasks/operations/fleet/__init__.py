"""Many devices as one fleet: a bundle reaches a few of them first, and all of them when no measure has become worse."""
