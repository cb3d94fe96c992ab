"""Sensors read from trees like those of real devices; what cannot be read is None, and 0 is never an energy."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from profiling_agents.messages import Measurement
from profiling_agents.sensing import energy, sensors
from profiling_agents.sensing.energy import Counter, EnergyMeter, find_meter

RAPL = "sys/class/powercap/intel-rapl:0"


def write(root: Path, files: Mapping[str, object]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def cpu(core: int, capacity: int, low: int, high: int, now: int) -> dict[str, object]:
    folder = f"sys/devices/system/cpu/cpu{core}"
    return {
        f"{folder}/cpu_capacity": capacity,
        f"{folder}/cpufreq/scaling_governor": "schedutil",
        f"{folder}/cpufreq/scaling_min_freq": low,
        f"{folder}/cpufreq/scaling_max_freq": high,
        f"{folder}/cpufreq/scaling_cur_freq": now,
    }


def test_a_system_that_says_nothing_gives_none_and_no_zero(tmp_path: Path) -> None:
    found = sensors.state([0, 1], tmp_path)
    assert [core.number for core in found.cores] == [0, 1]
    for core in found.cores:
        assert set(core.model_dump(exclude={"number"}).values()) == {None}
    assert (found.temperatures, found.throttle_events, found.throttled, found.power_source) == ((), None, None, None)
    assert found.memory_available_mib > 0
    assert sensors.operating_system(tmp_path) is None
    assert sensors.power_sensors(tmp_path) == ()
    assert sensors.frequency_state(0, tmp_path) == "unknown"
    assert find_meter(root=tmp_path) is None


def test_cores_tell_their_kind_and_frequencies(tmp_path: Path) -> None:
    write(tmp_path, cpu(0, 446, 300000, 1800000, 600000) | cpu(4, 1024, 2400000, 2400000, 2400000))
    little, big = sensors.state([0, 4], tmp_path).cores
    assert (little.capacity, little.min_mhz, little.max_mhz, little.current_mhz) == (446, 300.0, 1800.0, 600.0)
    assert (big.capacity, big.governor) == (1024, "schedutil")
    assert [sensors.frequency_state(core, tmp_path) for core in (0, 4)] == ["as shipped", "pinned"]


def test_temperatures_have_the_names_of_their_sensors(tmp_path: Path) -> None:
    files = {
        "sys/class/thermal/thermal_zone0/type": "cpu-thermal",
        "sys/class/thermal/thermal_zone0/temp": 48312,
        "sys/class/thermal/thermal_zone1/type": "broken",
        "sys/class/thermal/thermal_zone1/temp": "N/A",
        "sys/class/hwmon/hwmon3/name": "k10temp",
        "sys/class/hwmon/hwmon3/temp1_input": 61250,
        "sys/class/hwmon/hwmon3/temp1_label": "Tctl",
    }
    found = sensors.state([0], write(tmp_path, files)).temperatures
    assert [(one.name, one.celsius) for one in found] == [("cpu-thermal", 48.312), ("k10temp Tctl", 61.25)]


@pytest.mark.parametrize(
    ("files", "throttled"),
    [
        ({sensors.PI_THROTTLED: "50000"}, False),  # in the past only
        ({sensors.PI_THROTTLED: "50004"}, True),
        ({sensors.PI_THROTTLED: "?"}, None),
        ({"sys/class/thermal/cooling_device0/type": "Processor", "sys/class/thermal/cooling_device0/cur_state": 0}, False),
        ({"sys/class/thermal/cooling_device0/type": "cpufreq-cpu0", "sys/class/thermal/cooling_device0/cur_state": 2}, True),
        ({"sys/class/thermal/cooling_device0/type": "pwm-fan", "sys/class/thermal/cooling_device0/cur_state": 2}, None),
    ],
)  # fmt: skip
def test_throttling_is_told_by_firmware_and_cooling_devices(
    tmp_path: Path, files: Mapping[str, object], throttled: bool | None
) -> None:
    assert sensors.state([0], write(tmp_path, files)).throttled is throttled


def test_throttle_events_are_those_of_the_cores_and_their_package(tmp_path: Path) -> None:
    folder = "sys/devices/system/cpu/cpu{}/thermal_throttle/{}_throttle_count"
    write(tmp_path, {folder.format(0, "core"): 3, folder.format(0, "package"): 4, folder.format(1, "core"): 100})
    assert sensors.throttle_events([0], tmp_path) == 7
    assert sensors.throttle_events([2], tmp_path) is None


@pytest.mark.parametrize(
    ("supplies", "source"),
    [
        ({"AC/type": "Mains", "AC/online": 1, "BAT0/type": "Battery", "BAT0/status": "Charging"}, "ac"),
        ({"AC/type": "Mains", "AC/online": 0, "BAT0/type": "Battery", "BAT0/status": "Discharging"}, "battery"),
        ({"mouse/type": "Battery", "mouse/scope": "Device", "mouse/status": "Discharging"}, None),
        ({"AC/type": "Mains", "AC/online": 0}, None),
    ],
)
def test_the_power_source_is_a_battery_only_while_one_is_discharged(
    tmp_path: Path, supplies: Mapping[str, object], source: str | None
) -> None:
    write(tmp_path, {f"sys/class/power_supply/{name}": value for name, value in supplies.items()})
    assert sensors.state([0], tmp_path).power_source == source


def test_the_distribution_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"etc/os-release": 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"'})
    assert sensors.operating_system(tmp_path) == "Debian GNU/Linux 12 (bookworm)"


def rapl(root: Path, energy_uj: object = 5_000_000) -> Path:
    return write(
        root,
        {
            f"{RAPL}/name": "package-0",
            f"{RAPL}/energy_uj": energy_uj,
            f"{RAPL}/max_energy_range_uj": 262_143_328_850,
            f"{RAPL}:0/name": "core",
            f"{RAPL}:0/energy_uj": 4_000_000,
            f"{RAPL}:2/name": "dram",
            f"{RAPL}:2/energy_uj": 1_000_000,
            f"{RAPL}:2/max_energy_range_uj": 65_712_999_613,
        },
    )


def test_rapl_counts_packages_and_memory_but_no_part_twice(tmp_path: Path) -> None:
    found = sensors.power_sensors(rapl(tmp_path))
    assert [one.name for one in found] == ["intel-rapl:0 package-0", "intel-rapl:0:2 dram"]

    def run() -> None:
        write(
            tmp_path,
            {f"{RAPL}/energy_uj": 5_250_000, f"{RAPL}:0/energy_uj": 4_900_000, f"{RAPL}:2/energy_uj": 1_050_000},
        )

    meter = find_meter(root=tmp_path)
    assert meter is not None
    assert meter.kind == "rapl"
    assert meter.measure_mj(run) == pytest.approx(300.0)


def test_a_counter_that_overflows_goes_on_from_its_range(tmp_path: Path) -> None:
    meter = find_meter(root=rapl(tmp_path, 262_143_328_000))
    assert meter is not None
    energy_mj = meter.measure_mj(
        lambda: write(tmp_path, {f"{RAPL}/energy_uj": 149_150, f"{RAPL}:2/energy_uj": 1_000_000})
    )
    assert energy_mj == pytest.approx(150.0)
    assert Counter(lambda: 0).between(10, 5) is None


@pytest.mark.parametrize("content", ["0", "", "denied"])
def test_a_counter_that_shows_nothing_or_zero_is_no_sensor(tmp_path: Path, content: str) -> None:
    write(tmp_path, {f"{RAPL}/name": "package-0", f"{RAPL}/energy_uj": content})
    assert sensors.power_sensors(tmp_path) == ()
    assert find_meter(root=tmp_path) is None


@pytest.mark.parametrize("content", ["5000000", "0", "gone"])
def test_an_energy_of_zero_is_unknown(tmp_path: Path, content: str) -> None:
    meter = find_meter(root=rapl(tmp_path))
    assert meter is not None
    dram = {f"{RAPL}:2/energy_uj": 1_000_000}
    assert meter.measure_mj(lambda: write(tmp_path, {f"{RAPL}/energy_uj": content, **dram})) is None


def jetson(root: Path, current_ma: object = 1000) -> Path:
    folder = "sys/class/hwmon/hwmon1"
    return write(
        root,
        {
            f"{folder}/name": "ina3221",
            f"{folder}/in1_label": "VDD_IN",
            f"{folder}/in1_input": 5000,
            f"{folder}/curr1_input": current_ma,
            f"{folder}/in2_label": "VDD_CPU_GPU_CV",
            f"{folder}/in2_input": 5000,
            f"{folder}/curr2_input": 400,
            f"{folder}/in3_label": "VDD_SOC",
            f"{folder}/in3_input": 5000,
            f"{folder}/curr3_input": 0,
        },
    )


def test_the_power_of_the_rail_that_feeds_all_others_is_integrated(tmp_path: Path) -> None:
    names = [one.name for one in sensors.power_sensors(jetson(tmp_path))]
    assert names == ["VDD_IN", "VDD_CPU_GPU_CV"]
    meter = find_meter(root=tmp_path)
    assert meter is not None
    assert meter.kind == "ina3221"
    start_s = time.perf_counter()
    energy_mj = meter.measure_mj(lambda: time.sleep(0.2))
    wall_s = time.perf_counter() - start_s
    assert energy_mj is not None
    assert 0.2 * 5000 <= energy_mj <= wall_s * 5000  # 5 W


def test_a_rail_that_falls_silent_makes_the_energy_unknown(tmp_path: Path) -> None:
    meter = find_meter(root=jetson(tmp_path))
    assert meter is not None
    assert meter.measure_mj(lambda: jetson(tmp_path, current_ma=0)) is None


def test_other_rails_are_summed(tmp_path: Path) -> None:
    folder = "sys/class/hwmon/hwmon0"
    files = {f"{folder}/name": "ina226", f"{folder}/power1_input": 2_000_000, f"{folder}/power2_input": 1_000_000}
    meter = find_meter(root=write(tmp_path, files))
    assert meter is not None
    assert meter.kind == "hwmon"
    energy_mj = meter.measure_mj(lambda: time.sleep(0.1))
    assert energy_mj is not None
    assert energy_mj >= 0.1 * 3000


def test_rapl_comes_before_rails_so_that_nothing_counts_twice(tmp_path: Path) -> None:
    meter = find_meter(root=jetson(rapl(tmp_path)))
    assert meter is not None
    assert meter.kind == "rapl"


def test_a_meter_without_sensors_knows_nothing() -> None:
    assert EnergyMeter("none").measure_mj(lambda: None) is None


def test_a_failed_measurement_has_no_energy_and_none_is_zero() -> None:
    with pytest.raises(ValidationError, match="no energy"):
        Measurement(key="k", state="failed", reason="why", energy_mj=1.0)
    with pytest.raises(ValidationError):
        Measurement(key="k", state="ok", p50_ms=1.0, p90_ms=1.0, spread=0.0, energy_mj=0.0)


def test_energy_is_counted_for_as_long_as_asked_even_where_the_time_of_a_run_was_judged_wrong(tmp_path: Path) -> None:
    (folder := tmp_path / "rail").mkdir()
    (folder / "power1_input").write_text("2000000\n")  # µW
    meter = EnergyMeter("rail", rails=[lambda: sensors.read_number(folder / "power1_input")])

    def repeat(runs: int) -> None:
        time.sleep(runs * 1e-3)

    for judged_ms in (0.2, 50.0):
        start_s = time.perf_counter()
        energy_mj = meter.of_one_run_mj(repeat, judged_ms, energy_ms=100.0)
        assert time.perf_counter() - start_s >= 0.1
        assert energy_mj is not None
        assert energy_mj >= 2.0  # 2 W for at least 1 ms


class RunClock:
    """A clock that runs alone move, so that this machine's state does not matter."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.mark.parametrize("known", [True, False])
def test_a_counter_that_is_updated_seldom_is_given_more_time(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, moves_s, done = RunClock(), 0.05 if known else 60.0, 0
    monkeypatch.setattr(energy, "time", clock)
    counter = Counter(lambda: 5_000_000 + 3_000 * (clock.now_s > moves_s))

    def repeat(runs: int) -> None:
        nonlocal done
        clock.now_s += runs * 1e-3
        done += runs

    energy_mj = EnergyMeter("slow", counters=[counter]).of_one_run_mj(repeat, 1.0, energy_ms=30.0)
    assert (energy_mj is not None) == known
    assert energy_mj is None or 3.0 / done <= energy_mj <= 3.0
    assert clock.now_s == pytest.approx((1 + energy.PATIENCE) * 0.03, abs=0.005)
