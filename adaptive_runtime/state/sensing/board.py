"""Clock, temperature and power supply of the device, as the agents' sensing reads them."""

from pathlib import Path
from typing import Any

from profiling_agents.sensing.machine import available_cores
from profiling_agents.sensing.sensors import (
    SYSTEM,
    frequency_mhz,
    power_source,
    read_number,
    read_text,
    temperatures,
    throttled,
)


class FrequencySensor:
    """Mean frequency of the CPUs that this process may use [MHz]."""

    name = "frequency"

    def __init__(self, root: Path = SYSTEM) -> None:
        self._root = root

    def read(self) -> dict[str, Any]:
        """The sensor's field of the state."""
        found = [frequency_mhz(core, root=self._root) for core in available_cores()]
        known = [mhz for mhz in found if mhz is not None]
        return {"frequency_mhz": sum(known) / len(known) if known else None}


class TemperatureSensor:
    """The hottest sensor [°C], and whether heat or a low supply slows the processor down."""

    name = "temperature"

    def __init__(self, root: Path = SYSTEM) -> None:
        self._root = root

    def read(self) -> dict[str, Any]:
        """The sensor's fields of the state."""
        hottest = max((each.celsius for each in temperatures(self._root)), default=None)
        return {"temperature_c": hottest, "throttled": throttled(self._root)}


class BatterySensor:
    """Charge of the device's battery, and whether the device has a power supply."""

    name = "battery"

    def __init__(self, root: Path = SYSTEM) -> None:
        self._root = root

    def read(self) -> dict[str, Any]:
        """The sensor's fields of the state; with several batteries, their mean charge."""
        charges: list[int] = []
        for folder in sorted((self._root / "sys/class/power_supply").glob("*")):
            if read_text(folder / "type") == "Battery" and read_text(folder / "scope") != "Device":
                charge = read_number(folder / "capacity")
                charges += [] if charge is None else [min(100, max(0, charge))]
        source = power_source(self._root)
        return {
            "battery": sum(charges) / len(charges) / 100 if charges else None,
            "plugged": None if source is None else source == "ac",
        }
