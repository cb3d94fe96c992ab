"""Segments of SubNets served to coordinators: `autotailor agent --serve-segments`."""
