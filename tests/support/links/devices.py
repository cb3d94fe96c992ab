"""Devices that serve segments, each a process of its own on loopback, and a SubNet to be split."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

import numpy as np
import onnxruntime
import torch

import tailor_ir
from adaptive_runtime.offload.links import DeviceAddress
from adaptive_runtime.offload.split import SplitNetwork, SplitSubNet
from tests.support.agents.agent_processes import TOKEN, started
from tests.support.ir.networks import small_net
from tests.support.runtime.bundled import write_own_chain

BLOCKS = 4
PATIENCE_S = 120.0
"""Until devices are in: their processes may have to start, and coordinators rest between attempts."""
Array = np.ndarray


class ServingDevice(NamedTuple):
    """A process that serves segments, and where."""

    process: Popen[str]
    url: str

    @property
    def address(self) -> DeviceAddress:
        return DeviceAddress(url=self.url, token=TOKEN)


@contextmanager
def serving(backend: str = "onnxruntime", *options: str) -> Iterator[ServingDevice]:
    """A device, terminated at the end if it is still there."""
    words = ("--backend", backend, "--serve-segments", "--port", "0", *options)
    with started(words) as (process, printed):
        yield ServingDevice(process, printed["agent ready"])


def are_in(network: SplitNetwork, *names: str) -> bool:
    """Whether devices take part, all of them without names; waits for those that do not yet."""
    return network.wait_for(*names, timeout_s=PATIENCE_S)


def write_chain(folder: Path, channels: int = 16) -> Path:
    """A chain of several segments with random weights."""
    torch.manual_seed(0)
    space = {"exits": ["stage.1.block.*"]}
    net = tailor_ir.compile(small_net(channels=channels, blocks=BLOCKS), torch.randn(1, 3, 16, 16), space)
    folder.mkdir(parents=True, exist_ok=True)
    write_own_chain(net, net.max_config, folder)
    return folder


def inputs(split: SplitSubNet, count: int, seed: int = 0) -> list[Array]:
    """Random inputs."""
    shape = split.subnet.shapes[split.subnet.input]
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for _ in range(count)]


class Reference:
    """Answers of a SubNet by its files alone."""

    def __init__(self, split: SplitSubNet) -> None:
        self._split = split
        self._sessions = [
            onnxruntime.InferenceSession(split.files[one.files[0]], providers=["CPUExecutionProvider"])
            for one in split.subnet.segments
        ]

    def __call__(self, x: Array) -> Array:
        values = {self._split.subnet.input: x}
        for segment, session in zip(self._split.subnet.segments, self._sessions, strict=True):
            given = session.run(segment.output_names, {name: values[name] for name in segment.input_names})
            values |= zip(segment.output_names, given, strict=True)
        answer: Array = values[self._split.subnet.answer]
        return answer


def same(got: Array, expected: Array, tolerance: float = 1e-4) -> bool:
    """Whether an answer is right, relative to its largest value."""
    return bool(np.abs(got - expected).max() <= tolerance * np.abs(expected).max())
