"""Cores pinned to one frequency while an agent runs, and restored afterwards.

Linux's cpufreq: if the lowest and the highest allowed frequency are equal, every governor keeps to it. Setting them needs
root. An agent that is killed by force leaves its cores pinned.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from profiling_agents.messages import AgentError
from profiling_agents.sensing.sensors import CPUS, SYSTEM, read_number

FrequencyLimits = tuple[int | None, int | None]
"""Lowest and highest frequency [kHz]."""


@contextmanager
def pinned_frequency(cores: Sequence[int], mhz: int | None, root: Path = SYSTEM) -> Iterator[None]:
    """Pin all `cores` at `mhz` (None: no change) until the block ends; the setting is read back. AgentError if impossible."""
    with ExitStack() as stack:
        if mhz is not None:
            for core in cores:
                stack.enter_context(_pinned(core, 1000 * mhz, root / CPUS / f"cpu{core}/cpufreq"))
        yield


@contextmanager
def _pinned(core: int, khz: int, folder: Path) -> Iterator[None]:
    before, (lowest, highest) = _read(folder, "scaling"), _read(folder, "cpuinfo")
    if None in before or lowest is None or highest is None:
        raise AgentError(f"--pin-mhz: this system does not say the frequencies of core {core}; leave it out")
    if not lowest <= khz <= highest:
        raise AgentError(f"--pin-mhz: got {khz // 1000}; core {core} allows {lowest // 1000} to {highest // 1000}")
    try:
        try:
            _write(folder, khz, khz)
        except OSError as error:
            hint = "run the agent as root or leave it out"
            raise AgentError(f"--pin-mhz: core {core} cannot be set here ({error.strerror}); {hint}") from error
        if (got := _read(folder, "scaling")) != (khz, khz):
            raise AgentError(f"--pin-mhz: got {khz // 1000}; core {core} took {got[0]} to {got[1]} kHz instead")
        yield
    finally:
        with suppress(OSError):  # if it could not be set, there is nothing to undo
            _write(folder, *before)


def _read(folder: Path, kind: str) -> FrequencyLimits:
    return read_number(folder / f"{kind}_min_freq"), read_number(folder / f"{kind}_max_freq")


def _write(folder: Path, low: int | None, high: int | None) -> None:
    """Set both limits. The order counts: the system always refuses a lowest frequency above the highest."""
    now_high = read_number(folder / "scaling_max_freq") or 0
    writes = [("max", high), ("min", low)] if (high or 0) >= now_high else [("min", low), ("max", high)]
    for end, value in writes:
        (folder / f"scaling_{end}_freq").write_text(f"{value}\n")
