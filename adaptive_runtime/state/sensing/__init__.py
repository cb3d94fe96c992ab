"""A deployed model's view of its device: samples of its state, its load, the hit rate of its caches, energy.

[Sensing](docs/runtime_sensing.md) explains each value.
"""

from adaptive_runtime.state.sensing.sampler import DeadlineReader, Sensing, Sensor, device_sensors
from adaptive_runtime.state.sensing.sensors import (
    BatterySensor,
    CpuSensor,
    FrequencySensor,
    GpuSensor,
    MemorySensor,
    PressureSensor,
    TemperatureSensor,
)
from adaptive_runtime.state.sensing.state import (
    HitRateSource,
    LoadWeights,
    Pressure,
    SensedState,
    SensorFault,
    load_index,
)
