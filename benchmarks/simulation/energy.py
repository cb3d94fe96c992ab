"""Energy of running a network by AdaScale's eq. 3, from a calibration of the device.

The energy of accesses that the caches answer falls with the processor's frequency as in the equation, and so does that of
memory accesses with memory's. Multiply-accumulates, which the equation leaves out, have their own coefficient. The
choice uses the energies of the bundle, not these.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import FileMessage

NotNegative = Annotated[float, Field(ge=0)]


class EnergyCalibration(FileMessage):
    """Coefficients of one device.

    mac_pj: energy of one multiply-accumulate [pJ]. cpu_w, gpu_w, memory_w: power while accesses are answered [W].
    accesses_per_cycle: accesses that one cycle answers. memory_mhz, gpu_mhz: their clocks. error: mean absolute relative
    error of energies against measured ones, if any were measured.
    """

    WHERE: ClassVar[str] = "energy calibration"
    NEXT_STEP: ClassVar[str] = "calibrate the device again"

    version: Literal[1] = 1
    mac_pj: NotNegative
    cpu_w: NotNegative
    memory_w: NotNegative
    memory_mhz: Annotated[float, Field(gt=0)]
    gpu_w: NotNegative = 0.0
    gpu_mhz: Annotated[float, Field(gt=0)] | None = None
    accesses_per_cycle: Annotated[float, Field(gt=0)] = 1.0
    error: NotNegative | None = None

    def energy_mj(
        self, *, macs: float, accesses: float, cpu_mhz: float, hit_rate: float, gpu_accesses: float = 0.0
    ) -> float:
        """Energy of one run [mJ].

        accesses, gpu_accesses: memory accesses of its operators, Σ (input + output + weights + bias). hit_rate: share that the
        caches answer. AdaptiveError for a rate outside 0 to 1, a frequency of 0, or GPU work without a known GPU clock.
        """
        if not 0.0 <= hit_rate <= 1.0:
            raise AdaptiveError("energy", f"hit rate {hit_rate:g}", allowed="0 to 1")
        if cpu_mhz <= 0:
            raise AdaptiveError("energy", f"{cpu_mhz:g} MHz", allowed="a frequency above 0")
        per_second = 1e6 * self.accesses_per_cycle
        joule = accesses * self.cpu_w * hit_rate / (cpu_mhz * per_second)
        joule += accesses * self.memory_w * (1.0 - hit_rate) / (self.memory_mhz * per_second)
        if gpu_accesses:
            if self.gpu_mhz is None:
                raise AdaptiveError("energy", "accesses of a GPU", next_step="calibrate with gpu_mhz")
            joule += gpu_accesses * self.gpu_w / (self.gpu_mhz * per_second)
        return 1e3 * joule + 1e-9 * macs * self.mac_pj
