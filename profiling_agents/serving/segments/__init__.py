"""Segments of SubNets served to homes: `autotailor agent --serve-segments`."""
