"""Energy by AdaScale's eq. 3."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_runtime.base.errors import AdaptiveError
from benchmarks.simulation.energy import EnergyCalibration

CALIBRATION = EnergyCalibration(mac_pj=2.0, cpu_w=2.0, memory_w=8.0, memory_mhz=1600)
COUNTS = st.floats(0, 1e10)
RATES = st.floats(0, 1)


def test_the_equation_by_hand() -> None:
    energy_mj = CALIBRATION.energy_mj(macs=1e9, accesses=8e6, cpu_mhz=2000, hit_rate=0.75)
    hits_j, misses_j, macs_j = 6e6 * 2.0 / 2e9, 2e6 * 8.0 / 1.6e9, 1e9 * 2e-12
    assert energy_mj == pytest.approx(1e3 * (hits_j + misses_j + macs_j))


@given(macs=COUNTS, accesses=COUNTS, rates=st.tuples(RATES, RATES), mhz=st.floats(100, 1600))
def test_fewer_hits_never_take_less_energy_where_memory_costs_more(
    macs: float, accesses: float, rates: tuple[float, float], mhz: float
) -> None:
    calibration = CALIBRATION.model_copy(update={"memory_mhz": mhz})
    fewer, more = (
        calibration.energy_mj(macs=macs, accesses=accesses, cpu_mhz=1600, hit_rate=rate) for rate in sorted(rates)
    )
    assert fewer >= more * (1 - 1e-12) >= 0


@given(macs=COUNTS, accesses=COUNTS, rate=RATES, factor=st.floats(0, 10))
def test_energy_is_in_proportion_to_the_work(macs: float, accesses: float, rate: float, factor: float) -> None:
    one = CALIBRATION.energy_mj(macs=macs, accesses=accesses, cpu_mhz=1000, hit_rate=rate)
    many = CALIBRATION.energy_mj(macs=factor * macs, accesses=factor * accesses, cpu_mhz=1000, hit_rate=rate)
    assert many == pytest.approx(factor * one, rel=1e-9, abs=1e-12)


def test_what_cannot_be_is_one_line() -> None:
    with pytest.raises(AdaptiveError, match=r"hit rate 1\.5; allowed: 0 to 1"):
        CALIBRATION.energy_mj(macs=1, accesses=1, cpu_mhz=1000, hit_rate=1.5)
    with pytest.raises(AdaptiveError, match="accesses of a GPU; calibrate with gpu_mhz"):
        CALIBRATION.energy_mj(macs=1, accesses=1, cpu_mhz=1000, hit_rate=0.5, gpu_accesses=1)
    with pytest.raises(AdaptiveError, match="memory_mhz"):
        EnergyCalibration.from_json('{"mac_pj": 1, "cpu_w": 1, "memory_w": 1, "memory_mhz": 0}')
