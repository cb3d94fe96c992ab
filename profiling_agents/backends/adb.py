"""Android devices through `adb`: commands, and parsers of their output. Nothing here has run on a phone yet.

The parsers read the formats of adb, getprop and ncnn's benchncnn. Commands are lists of arguments on this machine; words
for the device's shell are quoted.
"""

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling_agents.messages import AgentError, Shape

FOLDER = "/data/local/tmp"
BENCHMARK = f"{FOLDER}/benchncnn"
MODELS = f"{FOLDER}/autotailor"
ALL_CORES, LITTLE_CORES, BIG_CORES = 0, 1, 2
POWERSAVE = {"all": ALL_CORES, "little": LITTLE_CORES, "big": BIG_CORES}
"""Values of benchncnn's `powersave` argument: it chooses the cores."""
CPU_ONLY = -1
NO_COOLING_DOWN = 0
RUN_LIMIT_S = 50
SHORT_LIMIT_S = 20.0

PROPERTY = re.compile(r"^\[(?P<name>[^\]]+)\]: \[(?P<value>.*)\]$", re.MULTILINE)
TIMES = re.compile(r"min\s*=\s*(?P<min>\d+\.\d+)\s+max\s*=\s*(?P<max>\d+\.\d+)\s+avg\s*=\s*(?P<avg>\d+\.\d+)")
MASK = re.compile(r"[0-9a-f]{1,16}")
SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


@dataclass(frozen=True, slots=True)
class Times:
    """One line of benchncnn [ms], two decimals each."""

    min_ms: float
    max_ms: float
    avg_ms: float


@dataclass(frozen=True, slots=True)
class Phone:
    """One device of adb, and the cores to use: all, little, big, or a hexadecimal mask."""

    serial: str
    cores: str

    @classmethod
    def parse(cls, provider: str | None) -> "Phone":
        """The device given as SERIAL or SERIAL/CORES; AgentError for anything else."""
        serial, _, cores = (provider or "").partition("/")
        cores = cores or "all"
        if not SERIAL.fullmatch(serial) or not (cores in POWERSAVE or MASK.fullmatch(cores)):
            raise AgentError(
                f"--provider: got {provider}; allowed: SERIAL or SERIAL/CORES with the serial number that "
                "'adb devices' shows and cores all, little, big or a hexadecimal mask"
            )
        return cls(serial, cores)

    def adb(self, *words: str) -> list[str]:
        """An adb command for this device."""
        return ["adb", "-s", self.serial, *words]

    def shell(self, script: str) -> list[str]:
        """A command line for the device's shell; the caller quotes its parts."""
        return self.adb("shell", script)

    def push(self, local: Path, remote: str) -> list[str]:
        """Copy a file to the device."""
        return self.adb("push", str(local.absolute()), remote)

    def benchmark(self, param: str, shapes: Sequence[Shape], loops: int, threads: int) -> list[str]:
        """Command that runs a model of the models' folder `loops` times. `shapes`: (C, H, W) per input; ncnn reverses them."""
        powersave = POWERSAVE.get(self.cores, ALL_CORES)
        numbers = (loops, threads, powersave, CPU_ONLY, NO_COOLING_DOWN)
        sizes = ",".join(f"[{','.join(str(size) for size in reversed(shape))}]" for shape in shapes)
        command = [BENCHMARK, *map(str, numbers), f"param={param}", f"shape={sizes}"]
        mask = [] if self.cores in POWERSAVE else ["taskset", self.cores]
        limited = ["env", f"OMP_NUM_THREADS={threads}", "timeout", str(RUN_LIMIT_S), *mask, *command]
        return self.shell(f"cd {shlex.quote(MODELS)} && exec {shlex.join(limited)}")


def parse_devices(text: str) -> dict[str, str]:
    """State of each serial number, from `adb devices`."""
    _, _, listed = text.partition("List of devices attached")
    rows = (line.split() for line in listed.splitlines())
    return {row[0]: row[1] for row in rows if len(row) >= 2}


def parse_properties(text: str) -> dict[str, str]:
    """Properties by name, from `getprop`."""
    return {found["name"]: found["value"] for found in PROPERTY.finditer(text)}


def parse_times(text: str) -> Times:
    """The times of the single model that benchncnn ran; AgentError with its output if it does not show exactly one."""
    found = list(TIMES.finditer(text))
    if len(found) != 1:
        printed = " ".join(text.split())[-200:]
        raise AgentError(f"benchncnn printed {len(found)} times instead of one; {printed}")
    return Times(*(float(found[0][name]) for name in ("min", "max", "avg")))


def run(command: Sequence[str], limit_s: float = SHORT_LIMIT_S) -> str:
    """The command's output (stdout and stderr together); AgentError in one line when the command fails."""
    where = " ".join(command[:4])
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise AgentError("adb: not on this machine; install Android's platform tools") from error
    except subprocess.TimeoutExpired as error:
        raise AgentError(f"{where}: not finished after {limit_s:g} s; is the device connected?") from error
    printed = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise AgentError(f"{where}: failed with code {done.returncode}; {' '.join(printed.split())[-200:]}")
    return printed
