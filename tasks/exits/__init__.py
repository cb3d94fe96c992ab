"""Exits before deployment: thresholds with a promise about accuracy, from held-out images and measured latencies."""

from tasks.exits.calibrate import CalibratedExits, PromiseSettings, calibrate
from tasks.exits.held_out import HeldOut

__all__ = ["CalibratedExits", "HeldOut", "PromiseSettings", "calibrate"]
