"""SubNets of a bundle over several devices: what the stages "front" and "export" need of these devices."""

from flows.stages.placed.tables import is_placed, other_devices, placed_files, placed_settings, placements

__all__ = ["is_placed", "other_devices", "placed_files", "placed_settings", "placements"]
