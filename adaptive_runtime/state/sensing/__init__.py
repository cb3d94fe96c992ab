"""A deployed model's view of its device: samples of its state, its load, the hit rate of its caches, energy.

[Sensing](docs/runtime_sensing.md) explains each value.
"""

from adaptive_runtime.state.sensing.board import BatterySensor, FrequencySensor, TemperatureSensor
from adaptive_runtime.state.sensing.cpu import CpuSensor
from adaptive_runtime.state.sensing.gpu import GpuSensor
from adaptive_runtime.state.sensing.load import LoadWeights, load_index
from adaptive_runtime.state.sensing.memory import MemorySensor
from adaptive_runtime.state.sensing.pressure import PressureSensor
from adaptive_runtime.state.sensing.reading import DeadlineReader, Sensor
from adaptive_runtime.state.sensing.sampler import Sensing, device_sensors
from adaptive_runtime.state.sensing.state import HitRateSource, Pressure, SensedState, SensorFault

__all__ = [
    "BatterySensor",
    "CpuSensor",
    "DeadlineReader",
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
