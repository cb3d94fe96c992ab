"""ncnn on an Android device, through adb and ncnn's benchncnn. Nothing here has run on a phone yet.

The agent runs beside the device. benchncnn makes up weights and inputs, times with the device's clock, and gives no
outputs. A sample is the mean over the runs of one call. benchncnn prints milliseconds with two decimals; a model that is too
short for two decimals fails, instead of taking 0 ms.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from profiling_agents.backends import adb
from profiling_agents.backends.base import ModelError, RuntimeOptions
from profiling_agents.backends.ncnn_names import renamed_file
from profiling_agents.backends.own_names import OwnNames
from profiling_agents.messages import (
    AgentError,
    EngineOption,
    Format,
    JobMessage,
    LayerTiming,
    RuntimeInfo,
    RuntimeSettings,
)
from profiling_agents.sensing.pace import Runs

LEAST_MS = 0.1
"""Below this time, the second decimal is more than 5 % of it."""
MAX_AXES = 3


class NcnnAdbBackend:
    """benchncnn on one device, as the tool is built: it computes in fp16 if the processor can."""

    formats: tuple[Format, ...] = ("ncnn",)
    engine_options: tuple[EngineOption, ...] = ()

    def __init__(self, options: RuntimeOptions) -> None:
        if options.precision != "fp16":
            raise AgentError(f"--precision: got {options.precision}; benchncnn runs models in: fp16")
        self._threads = options.threads
        self.settings: RuntimeSettings = {"num_threads": options.threads}
        self._phone = adb.Phone.parse(options.provider)
        state = adb.parse_devices(adb.run(["adb", "devices"])).get(self._phone.serial)
        if state != "device":
            raise AgentError(f"adb: {self._phone.serial} is {state or 'not connected'}; allow debugging on its screen")
        self._properties = adb.parse_properties(adb.run(self._phone.shell("getprop")))
        self._digest = self._benchmark_digest()
        adb.run(self._phone.shell(f"mkdir -p {adb.MODELS}"))

    def describe(self) -> RuntimeInfo:
        """The tool's build, and the device as its properties name it."""
        known = self._properties.get
        name = f"{known('ro.product.manufacturer', '')} {known('ro.product.model', '')}".strip() or "unknown device"
        system = f"Android {known('ro.build.version.release', '?')}, {known('ro.product.cpu.abi', '?')}"
        return RuntimeInfo(
            backend="ncnn-adb",
            version="benchncnn",
            build=f"{self._digest} {known('ro.build.fingerprint', '')}".strip(),
            formats=self.formats,
            precision="fp16",
            precisions=("fp16",),
            settings=self.settings,
            provider=f"{self._phone.serial}/{self._phone.cores}",
            accelerator=f"{name} ({known('ro.board.platform', '?')}, {system})",
        )

    def load(self, files: Sequence[Path], job: JobMessage) -> "NcnnAdbModel":
        """Copy the param file, with our own names in it, to the device; the weights are not needed there."""
        shapes = [_without_batch(*pair) for pair in zip(job.input_names, job.input_shapes, strict=True)]
        remote = f"{files[0].name}.param"
        with renamed_file(files[0], OwnNames()) as local:
            adb.run(self._phone.push(local, f"{adb.MODELS}/{remote}"))
        return NcnnAdbModel(self._phone, remote, shapes, self._threads, job)

    def _benchmark_digest(self) -> str:
        """First 16 hex characters of the sha256 of the tool on the device."""
        try:
            return adb.run(self._phone.shell(f"test -x {adb.BENCHMARK} && sha256sum {adb.BENCHMARK}"))[:16]
        except AgentError as error:
            raise AgentError(
                f"{error}; build ncnn's benchmark for the device, then: adb push benchncnn {adb.FOLDER}/ "
                f"and adb shell chmod 755 {adb.BENCHMARK}"
            ) from error


class NcnnAdbModel:
    """One param file on the device."""

    on_cpu = False
    elsewhere = True

    def __init__(
        self, phone: adb.Phone, param: str, shapes: list[tuple[int, ...]], threads: int, job: JobMessage
    ) -> None:
        self._phone = phone
        self._param = param
        self._shapes = shapes
        self._threads = threads
        self._job = job

    def random_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """No inputs: benchncnn makes its own."""
        return []

    def repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], float | None]:
        """A function that calls benchncnn with n loops; the duration is the device's."""

        def repeat(runs: int) -> float:
            command = self._phone.benchmark(self._param, self._shapes, runs, self._threads)
            times = adb.parse_times(adb.run(command, adb.RUN_LIMIT_S + 5.0))
            if times.avg_ms < LEAST_MS:
                raise ModelError(
                    f"takes {times.avg_ms:.2f} ms, below the {LEAST_MS:g} ms that benchncnn's two decimals can tell"
                )
            return runs * times.avg_ms * 1e-3

        return repeat

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """ModelError: there are no outputs."""
        raise ModelError("benchncnn gives no outputs; check them with backend ncnn on another machine")

    def layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[LayerTiming]:
        """ModelError: single layers are not timed."""
        raise ModelError("benchncnn times no single layers")

    def close(self) -> None:
        """Remove the file from the device."""
        adb.run(self._phone.shell(f"rm -f {adb.MODELS}/{self._param}"))


def _without_batch(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) < 2:
        return shape
    if shape[0] != 1 or len(shape) - 1 > MAX_AXES:
        raise ModelError(f"input '{name}': got shape {shape}; benchncnn takes batch 1 and at most {MAX_AXES} more axes")
    return shape[1:]
