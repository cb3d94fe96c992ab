"""Use of NVIDIA GPUs, if the library `pynvml` is installed and finds one."""

import importlib
import importlib.util
from typing import Any


class GpuSensor:
    """Use of the busiest GPU and of its memory. `GpuSensor.find()` makes a sensor only if a GPU exists."""

    name = "gpu"

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]

    @classmethod
    def find(cls) -> "GpuSensor | None":
        """The sensor; None without library, driver or GPU."""
        if importlib.util.find_spec("pynvml") is None:
            return None
        nvml: Any = importlib.import_module("pynvml")
        try:
            nvml.nvmlInit()
            sensor = cls(nvml)
        except nvml.NVMLError:
            return None
        return sensor if sensor._handles else None

    def read(self) -> dict[str, Any]:
        """GPU fields of the state."""
        uses = [self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in self._handles]
        memories = [self._nvml.nvmlDeviceGetMemoryInfo(handle) for handle in self._handles]
        return {"gpu_use": max(uses), "gpu_memory_use": max(memory.used / memory.total for memory in memories)}
