"""Exits before deployment: thresholds with a promise about accuracy, from holdout images and measured latencies."""

from typing import TYPE_CHECKING

from importing import public_names

if TYPE_CHECKING:
    from tasks.exits.calibration import CalibratedExits, HeldOut, calibrate
    from tasks.exits.settings import PromiseSettings
else:
    __getattr__ = public_names(__name__, __file__)
