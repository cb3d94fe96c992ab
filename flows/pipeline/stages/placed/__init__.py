"""Inputs of the stages "front" and "export" for SubNets of a bundle that run over several devices."""

from flows.pipeline.stages.placed.tables import is_placed, other_devices, placed_files, placed_settings, placements

__all__ = ["is_placed", "other_devices", "placed_files", "placed_settings", "placements"]
