"""ncnn on an Android device, through adb and ncnn's benchncnn: commands, and parsers of their output.

Nothing here has run on a phone yet. The agent runs beside the device. benchncnn makes up weights and inputs, times with
the device's clock, and gives no outputs. A sample is the mean over the runs of one call. benchncnn prints milliseconds
with two decimals; a model that is too short for two decimals fails, instead of taking 0 ms. The parsers read the
formats of adb, getprop and benchncnn. Commands are lists of arguments on this machine; words for the device's shell are
quoted.
"""

import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profiling_agents.backends.base import Backend, Model, ModelError, RuntimeOptions
from profiling_agents.backends.sanitized_names import SanitizedNames, renamed_file, without_batch
from profiling_agents.messages import AgentError, JobMessage, LayerTiming, Shape
from profiling_agents.sensing.machine import Runs

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
TIMES = re.compile(r"min\s*=\s*\d+\.\d+\s+max\s*=\s*\d+\.\d+\s+avg\s*=\s*(\d+\.\d+)")
MASK = re.compile(r"[0-9a-f]{1,16}")
SERIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


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

    def shell(self, script: str) -> list[str]:
        """A command line for the device's shell; the caller quotes its parts."""
        return ["adb", "-s", self.serial, "shell", script]

    def push(self, local: Path, remote: str) -> list[str]:
        """Copy a file to the device."""
        return ["adb", "-s", self.serial, "push", str(local.absolute()), remote]

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


def parse_mean_ms(text: str) -> float:
    """The mean time [ms] of the single model that benchncnn ran; AgentError with its output if it does not show exactly one."""
    found = TIMES.findall(text)
    if len(found) != 1:
        printed = " ".join(text.split())[-200:]
        raise AgentError(f"benchncnn printed {len(found)} times instead of one; {printed}")
    return float(found[0])


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


LEAST_MS = 0.1
"""Below this time, the second decimal is more than 5 % of it."""
MAX_AXES = 3


class NcnnAdbBackend(Backend):
    """benchncnn on one device, as the tool is built: it computes in fp16 if the processor can."""

    name = "ncnn-adb"
    formats = ("ncnn",)
    precision = "fp16"
    precisions = ("fp16",)

    def __init__(self, options: RuntimeOptions) -> None:
        if options.precision != "fp16":
            raise AgentError(f"--precision: got {options.precision}; benchncnn runs models in: fp16")
        self._threads = options.threads
        self.settings = {"num_threads": options.threads}
        self._phone = Phone.parse(options.provider)
        self.provider = f"{self._phone.serial}/{self._phone.cores}"
        state = parse_devices(run(["adb", "devices"])).get(self._phone.serial)
        if state != "device":
            raise AgentError(f"adb: {self._phone.serial} is {state or 'not connected'}; allow debugging on its screen")
        known = parse_properties(run(self._phone.shell("getprop"))).get
        name = f"{known('ro.product.manufacturer', '')} {known('ro.product.model', '')}".strip() or "unknown device"
        system = f"Android {known('ro.build.version.release', '?')}, {known('ro.product.cpu.abi', '?')}"
        self.accelerator = f"{name} ({known('ro.board.platform', '?')}, {system})"
        self._build = f"{self._benchmark_digest()} {known('ro.build.fingerprint', '')}".strip()
        run(self._phone.shell(f"mkdir -p {MODELS}"))

    def version_and_build(self) -> tuple[str, str]:
        """The tool's hash, and the device's build."""
        return "benchncnn", self._build

    def load(self, files: Sequence[Path], job: JobMessage) -> Model:
        """Copy the param file, with our own names in it, to the device; the weights are not needed there."""
        shapes, names = without_batch(job, "benchncnn", MAX_AXES), SanitizedNames()
        remote = f"{files[0].name}.param"
        with renamed_file(files[0], names) as local:
            run(self._phone.push(local, f"{MODELS}/{remote}"))
        return NcnnAdbModel(job, names, self._phone, remote, shapes, self._threads)

    def _benchmark_digest(self) -> str:
        """First 16 hex characters of the sha256 of the tool on the device."""
        try:
            return run(self._phone.shell(f"test -x {BENCHMARK} && sha256sum {BENCHMARK}"))[:16]
        except AgentError as error:
            raise AgentError(
                f"{error}; build ncnn's benchmark for the device, then: adb push benchncnn {FOLDER}/ "
                f"and adb shell chmod 755 {BENCHMARK}"
            ) from error


class NcnnAdbModel(Model):
    """One param file on the device. benchncnn makes its own inputs."""

    on_cpu = False
    elsewhere = True
    runtime = "benchncnn"

    def __init__(
        self, job: JobMessage, names: SanitizedNames, phone: Phone, param: str, shapes: Sequence[Shape], threads: int
    ) -> None:
        super().__init__(job, dict.fromkeys(job.input_names, np.dtype(np.float32)), names)
        self._phone = phone
        self._param = param
        self._shapes = shapes
        self._threads = threads

    def _repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], float | None]:
        """A function that calls benchncnn with n loops; the duration is the device's."""

        def repeat(runs: int) -> float:
            command = self._phone.benchmark(self._param, self._shapes, runs, self._threads)
            mean_ms = parse_mean_ms(run(command, RUN_LIMIT_S + 5.0))
            if mean_ms < LEAST_MS:
                raise ModelError(
                    f"takes {mean_ms:.2f} ms, below the {LEAST_MS:g} ms that benchncnn's two decimals can tell"
                )
            return runs * mean_ms * 1e-3

        return repeat

    def _outputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        raise ModelError("benchncnn gives no outputs; check them with backend ncnn on another machine")

    def _layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[LayerTiming]:
        raise ModelError("benchncnn times no single layers")

    def close(self) -> None:
        """Remove the file from the device."""
        run(self._phone.shell(f"rm -f {MODELS}/{self._param}"))
