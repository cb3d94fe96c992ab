"""A deployed model's view of its device: samples of its state, its load, the hit rate of its caches, energy.

[Sensing](docs/runtime_sensing.md) explains each value.
"""

from adaptive_runtime.sensing.board import BatterySensor, FrequencySensor, TemperatureSensor
from adaptive_runtime.sensing.cpu import CpuSensor
from adaptive_runtime.sensing.energy import EnergyCalibration
from adaptive_runtime.sensing.gpu import GpuSensor
from adaptive_runtime.sensing.load import LoadWeights, load_index
from adaptive_runtime.sensing.memory import MemorySensor
from adaptive_runtime.sensing.pressure import PressureSensor
from adaptive_runtime.sensing.reading import DeadlineReader, Sensor
from adaptive_runtime.sensing.sampler import Sensing, device_sensors
from adaptive_runtime.sensing.state import HitRateSource, Pressure, SensedState, SensorFault

__all__ = [
    "BatterySensor",
    "CpuSensor",
    "DeadlineReader",
    "EnergyCalibration",
    "FrequencySensor",
    "GpuSensor",
    "HitRateSource",
    "LoadWeights",
    "MemorySensor",
    "Pressure",
    "PressureSensor",
    "SensedState",
    "Sensing",
    "Sensor",
    "SensorFault",
    "TemperatureSensor",
    "device_sensors",
    "load_index",
]
