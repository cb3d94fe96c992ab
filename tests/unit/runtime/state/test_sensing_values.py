"""What sensors read from files like those of real devices; what a device does not have is None, never 0."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adaptive_runtime.state.sensing import (
    BatterySensor,
    CpuSensor,
    FrequencySensor,
    GpuSensor,
    LoadWeights,
    MemorySensor,
    PressureSensor,
    SensedState,
    Sensing,
    TemperatureSensor,
    device_sensors,
    load_index,
)
from profiling_agents.messages import MIB
from tests.support import examples
from tests.support.runtime.device_files import HZ, Clock, pressure, stat, write

TICKS = st.integers(0, 10**7)
SHARES = st.none() | st.floats(0, 1)


@given(busy=TICKS, idle=TICKS, iowait=TICKS, steal=TICKS, own_share=st.floats(0, 2))
@settings(max_examples=examples(50), deadline=None)
def test_cpu_use_is_what_is_not_idle_between_two_snapshots(
    busy: int, idle: int, iowait: int, steal: int, own_share: float
) -> None:
    total = busy + idle + iowait + steal
    own = Clock(5.0)
    with TemporaryDirectory() as folder:
        root = write(Path(folder), {"proc/stat": stat(busy=1000, idle=2000, iowait=30, steal=7)})
        sensor = CpuSensor(root, cores=lambda: (0,), own_s=own)
        after = stat(busy=1000 + busy, idle=2000 + idle, iowait=30 + iowait, steal=7 + steal, running=3)
        write(root, {"proc/stat": after})
        own.now_s += own_share * total / HZ
        found = sensor.read()
    assert (found["runnable"], found["usable_cpus"]) == (3, 1.0)
    if total == 0:
        assert "cpu_use" not in found
        return
    use = (busy + steal) / total
    assert found["cpu_use"] == pytest.approx(use)
    assert found["cpu_stolen"] == pytest.approx(steal / total)
    assert found["cpu_use_others"] == pytest.approx(max(0.0, use - own_share), abs=1e-6)


def test_cpu_use_of_the_first_sample_counts_from_the_start_of_sensing(tmp_path: Path) -> None:
    write(tmp_path, {"proc/stat": stat(busy=10**6, idle=0)})
    sensor = CpuSensor(tmp_path, own_s=Clock())
    write(tmp_path, {"proc/stat": stat(busy=10**6 + 25, idle=75)})
    assert sensor.read()["cpu_use"] == 0.25


def group_v2(quota: str, used_us: int, periods: int, throttled: int) -> dict[str, object]:
    return {
        "cpu.max": quota,
        "cpu.stat": f"usage_usec {used_us}\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 5",
    }


def below(folder: str, files: dict[str, object]) -> dict[str, object]:
    return {f"{folder}/{name}": content for name, content in files.items()}


def test_the_tightest_quota_of_all_levels_counts(tmp_path: Path) -> None:
    clock = Clock()
    write(tmp_path, {"proc/self/cgroup": "0::/slice/app"})
    write(tmp_path, below("sys/fs/cgroup/slice", group_v2("50000 100000", 10**6, 10, 0)))
    write(tmp_path, below("sys/fs/cgroup/slice/app", group_v2("max 100000", 10**6, 0, 0)))
    sensor = CpuSensor(tmp_path, cores=lambda: range(8), clock=clock)
    clock.now_s += 2.0
    write(tmp_path, below("sys/fs/cgroup/slice", group_v2("50000 100000", 10**6 + 600_000, 30, 15)))
    found = sensor.read()
    assert found["usable_cpus"] == 0.5
    assert found["group_cpu_use"] == pytest.approx(0.6)  # 0.3 CPUs of 0.5
    assert found["group_throttled"] == 0.75


def test_the_quota_of_version_one_counts(tmp_path: Path) -> None:
    clock = Clock()
    write(tmp_path, {"proc/self/cgroup": "4:cpu,cpuacct:/app\n3:memory:/app"})
    folder = "sys/fs/cgroup/cpu,cpuacct/app"
    files = {"cpu.cfs_quota_us": 150000, "cpu.cfs_period_us": 100000, "cpu.stat": "nr_periods 0\nnr_throttled 0"}
    write(tmp_path, below(folder, files | {"cpuacct.usage": 10**9}))
    sensor = CpuSensor(tmp_path, cores=lambda: range(4), clock=clock)
    clock.now_s += 1.0
    write(tmp_path, {f"{folder}/cpuacct.usage": 10**9 + 750_000_000})
    found = sensor.read()
    assert (found["usable_cpus"], found["group_cpu_use"]) == (1.5, pytest.approx(0.5))


def test_a_group_without_quota_leaves_all_cores(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/"} | below("sys/fs/cgroup", group_v2("max 100000", 1, 1, 1)))
    found = CpuSensor(tmp_path, cores=lambda: range(4)).read()
    assert found["usable_cpus"] == 4.0
    assert "group_cpu_use" not in found


@given(total=st.integers(1, 2**40), data=st.data())
@settings(max_examples=examples(50), deadline=None)
def test_memory_is_what_the_machine_and_the_group_have_left(total: int, data: st.DataObject) -> None:
    available = data.draw(st.integers(0, total))
    limit = data.draw(st.integers(1, 2**41))
    used = data.draw(st.integers(0, limit))
    inactive = data.draw(st.integers(0, used))
    with TemporaryDirectory() as folder:
        root = write(
            Path(folder),
            {
                "proc/meminfo": f"MemTotal: {total // 1024} kB\nMemFree: 1 kB\nMemAvailable: {available // 1024} kB",
                "proc/self/cgroup": "0::/",
                "sys/fs/cgroup/memory.max": limit,
                "sys/fs/cgroup/memory.current": used,
                "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {inactive}",
            },
        )
        found = MemorySensor(root).read()
    left = limit - (used - inactive)
    assert found["memory_total_mib"] == pytest.approx(min(total, limit) / MIB, abs=1e-3)
    assert found["memory_available_mib"] == pytest.approx(min(available, left) / MIB, abs=1e-3)


def test_memory_without_limit_is_that_of_the_machine(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": "MemTotal: 4096 kB\nMemAvailable: 1024 kB", "proc/self/cgroup": "3:memory:/app"})
    write(
        tmp_path, below("sys/fs/cgroup/memory/app", {"memory.limit_in_bytes": 2**63 - 4096, "memory.usage_in_bytes": 7})
    )
    state = SensedState(at_s=0, wall_s=0, **MemorySensor(tmp_path).read())
    assert (state.memory_total_mib, state.memory_available_mib, state.memory_use) == (4.0, 1.0, 0.75)


def test_pressure_tells_the_share_since_the_sample_before(tmp_path: Path) -> None:
    clock = Clock()
    write(tmp_path, {"proc/pressure/cpu": pressure(12.5, 1_000_000), "proc/pressure/io": pressure(0, 0)})
    sensor = PressureSensor(tmp_path, clock)
    first = sensor.read()
    assert first["pressure_memory"] is None
    assert (first["pressure_cpu"].avg10, first["pressure_cpu"].since_last) == (0.125, None)
    clock.now_s += 2.0
    write(tmp_path, {"proc/pressure/cpu": pressure(50, 1_500_000)})
    assert sensor.read()["pressure_cpu"].since_last == 0.25


def test_clock_heat_and_supply_are_read(tmp_path: Path) -> None:
    supplies = "sys/class/power_supply"
    write(
        tmp_path,
        {
            **{f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq": 1_500_000 for core in range(64)},
            "sys/class/thermal/thermal_zone0/temp": 41000,
            "sys/class/thermal/thermal_zone1/temp": 63500,
            f"{supplies}/BAT0/type": "Battery",
            f"{supplies}/BAT0/status": "Discharging",
            f"{supplies}/BAT0/capacity": 80,
            f"{supplies}/mouse/type": "Battery",
            f"{supplies}/mouse/scope": "Device",
            f"{supplies}/mouse/capacity": 5,
        },
    )
    assert FrequencySensor(tmp_path).read() == {"frequency_mhz": 1500.0}
    assert TemperatureSensor(tmp_path).read()["temperature_c"] == 63.5
    assert BatterySensor(tmp_path).read() == {"battery": 0.8, "plugged": False}


def test_a_device_that_says_nothing_has_no_values(tmp_path: Path) -> None:
    sensing = Sensing([each for each in device_sensors(tmp_path) if each.name != "gpu"])
    state = sensing.sample()
    sensing.stop()
    assert state.faults == ()
    assert set(state.model_dump(exclude={"at_s", "wall_s", "usable_cpus", "faults"}).values()) == {None}


@given(cpu=SHARES, gpu=SHARES, memory=SHARES, weights=st.tuples(*[st.floats(0, 10)] * 3))
@example(cpu=None, gpu=0.5, memory=None, weights=(0.0, 5e-324, 0.0))
def test_the_load_index_is_the_weighted_mean_of_the_parts_there(
    cpu: float | None, gpu: float | None, memory: float | None, weights: tuple[float, float, float]
) -> None:
    left = None if memory is None else 100 * (1 - memory)
    state = SensedState(at_s=0, wall_s=0, cpu_use=cpu, gpu_use=gpu, memory_total_mib=100, memory_available_mib=left)
    index = load_index(state, LoadWeights(cpu=weights[0], gpu=weights[1], memory=weights[2]))
    known = [(weight, part) for weight, part in zip(weights, (cpu, gpu, memory), strict=True) if part is not None]
    whole = sum(weight for weight, _ in known)
    if whole == 0:
        assert index is None
        return
    assert index is not None
    assert index * whole == pytest.approx(sum(weight * part for weight, part in known), abs=1e-9)
    assert min(part for _, part in known) - 1e-9 <= index <= max(part for _, part in known) + 1e-9


def test_a_gpu_is_read_only_where_there_is_one() -> None:
    gpu = GpuSensor.find()
    assert [each.name for each in device_sensors()].count("gpu") == (gpu is not None)
    if gpu is not None:
        assert all(0 <= share <= 1 for share in gpu.read().values())
