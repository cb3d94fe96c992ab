"""Frequencies pinned and given back, on trees of files like those of Linux' cpufreq; no real core was set."""

import os
import signal
from pathlib import Path

import pytest

from profiling_agents.client import AgentClient, AgentError, local_agent
from profiling_agents.sensing import sensors
from profiling_agents.sensing.machine import pinned_frequency
from tests.support.agents import agent_processes as processes

CORES = sorted(os.sched_getaffinity(0))
LOWEST, HIGHEST = 300_000, 2_400_000
LIMITS = (600_000, 1_800_000)


def cpufreq(root: Path, core: int) -> Path:
    return root / sensors.CPUS / f"cpu{core}/cpufreq"


def write_core(root: Path, core: int, capacity: int = 1024) -> None:
    folder = cpufreq(root, core)
    folder.mkdir(parents=True)
    (folder.parent / "cpu_capacity").write_text(f"{capacity}\n")
    numbers = {"cpuinfo_min": LOWEST, "cpuinfo_max": HIGHEST, "scaling_min": LIMITS[0], "scaling_max": LIMITS[1]}
    for name, khz in (numbers | {"scaling_cur": LIMITS[1]}).items():
        (folder / f"{name}_freq").write_text(f"{khz}\n")
    (folder / "scaling_governor").write_text("schedutil\n")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for core in CORES:
        write_core(tmp_path, core)
    return tmp_path


def limits(root: Path, core: int) -> tuple[int | None, ...]:
    return tuple(sensors.read_number(cpufreq(root, core) / f"scaling_{end}_freq") for end in ("min", "max"))


@pytest.mark.parametrize("mhz", [300, 1000, 2000, 2400])
def test_cores_are_pinned_and_get_their_limits_back(tree: Path, mhz: int) -> None:
    with pinned_frequency(CORES[:1], mhz, tree):
        assert limits(tree, CORES[0]) == (1000 * mhz, 1000 * mhz)
        assert sensors.frequency_state(CORES[0], tree) == "pinned"
        assert all(limits(tree, core) == LIMITS for core in CORES[1:])
    assert limits(tree, CORES[0]) == LIMITS


def test_limits_come_back_after_a_fault_and_without_a_wish_nothing_is_touched(tree: Path) -> None:
    with pytest.raises(RuntimeError, match="fault"), pinned_frequency(CORES, 1000, tree):
        raise RuntimeError("fault")
    assert [limits(tree, core) for core in CORES] == [LIMITS] * len(CORES)
    with pinned_frequency(CORES, None, tree / "nowhere"):
        pass


@pytest.mark.parametrize("mhz", [299, 2401])
def test_a_frequency_that_the_core_has_not_is_refused_with_its_range(tree: Path, mhz: int) -> None:
    with (
        pytest.raises(AgentError, match=rf"--pin-mhz: got {mhz}; core \d+ allows 300 to 2400"),
        local_agent("ncnn", options=["--sensors-root", str(tree), "--pin-mhz", str(mhz)]),
    ):
        pass


def test_a_system_without_frequencies_is_refused(tmp_path: Path) -> None:
    (tmp_path / sensors.CPUS).mkdir(parents=True)
    with pytest.raises(AgentError, match="does not say the frequencies of core 0"), pinned_frequency([0], 1, tmp_path):
        pass


def test_a_system_that_lets_nobody_set_them_is_refused_and_left_as_it_is(tree: Path) -> None:
    """A file that not even root may write stands for the one of the highest frequency."""
    protected = cpufreq(tree, CORES[0]) / "scaling_max_freq"
    protected.unlink()
    protected.symlink_to("/proc/sys/kernel/ngroups_max")
    before = limits(tree, CORES[0])
    with (
        pytest.raises(AgentError, match=r"cannot be set here .*; run the agent as root or leave it out"),
        pinned_frequency(CORES[:1], 1000, tree),
    ):
        pass
    assert limits(tree, CORES[0]) == before


@pytest.mark.long
def test_an_agent_says_what_it_pinned_and_undoes_it_when_it_ends(tree: Path) -> None:
    prints = set()
    for mhz in (None, 900, 1200):
        options = ["--backend", "ncnn", "--port", "0", "--sensors-root", str(tree), "--cores", str(CORES[0])]
        options += [] if mhz is None else ["--pin-mhz", str(mhz)]
        with processes.started(options) as (process, printed):
            with AgentClient(printed["agent ready"], processes.TOKEN) as client:
                found = client.capabilities()
            core = next(one for one in found.state.cores if one.number == CORES[0])
            assert found.frequency_state == ("as shipped" if mhz is None else "pinned")
            assert (core.min_mhz, core.max_mhz) == ((600.0, 1800.0) if mhz is None else (mhz, mhz))
            prints.add(found.fingerprint)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert limits(tree, CORES[0]) == LIMITS
    assert len(prints) == 3


@pytest.mark.long
@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_big_and_little_cores_of_one_machine_are_two_devices(tmp_path: Path) -> None:
    fingerprints = []
    for capacities in ((446, 1024), (1024, 1024)):
        root = tmp_path / str(capacities[0])
        for core, capacity in zip(CORES, capacities, strict=False):
            write_core(root, core, capacity)
        for core in CORES[:2]:
            with local_agent("ncnn", cores=[core], options=["--sensors-root", str(root)]) as client:
                fingerprints.append(client.capabilities().fingerprint)
    little, big, *alike = fingerprints
    assert little != big
    assert alike == [big, big]
