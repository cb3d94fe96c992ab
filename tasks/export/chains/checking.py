"""Comparison of chain files with torch: every value of a segment, while the files read each other's values."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from profiling_agents.client import AgentClient, ModelJob
from tailor_ir import Segment
from tasks.export.chains.making import MadeChain
from tasks.export.files import Images

SMALLEST = 1e-12
Values = list[NDArray[np.float32]]
"""The answer of a segment, then the values it passes on; ncnn keeps these internal and gives the answer alone."""


def largest_difference(
    client: AgentClient, made: MadeChain, segments: Sequence[Segment], images: Images
) -> tuple[float, ...]:
    """For each segment the largest difference of a value from torch's, over the largest value of torch. images: (N, C, H,
    W).
    """
    run = _of_net if made.format == "ncnn" else _of_files
    found = [differences_of(segments, images, size, partial(run, client, jobs)) for size, jobs in made.jobs.items()]
    return tuple(np.max(found, 0).tolist())


def differences_of(
    segments: Sequence[Segment], images: Images, size: int, run: Callable[[Images], Iterable[Values]]
) -> tuple[float, ...]:
    """Like `largest_difference`, for the values, or the answer alone, that `run` gives for batches (`size`, C, H, W)."""
    worst = np.zeros(len(segments))
    for x_BCHW in _in_batches(images, size):
        for at, (ours, theirs) in enumerate(zip(run(x_BCHW), _torchs(segments, x_BCHW), strict=True)):
            found = [_difference(*pair) for pair in zip(ours, theirs[: len(ours)], strict=True)]
            worst[at] = np.max([worst[at], *found])  # np.max propagates NaN
    return tuple(worst.tolist())


def _in_batches(images: Images, size: int) -> Iterator[Images]:
    """Batches of a fixed size; the last one is padded with its last image."""
    for start in range(0, len(images), size):
        part = images[start : start + size]
        yield np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)])


def _torchs(segments: Sequence[Segment], x_BCHW: Images) -> Iterator[Values]:
    """The values of each segment in torch."""
    values = {segments[0].inputs[0]: torch.from_numpy(x_BCHW)}
    for segment in segments:
        with torch.inference_mode():
            answer = segment(values)
        yield [answer.numpy(), *(values[name].numpy() for name in segment.outputs[1:])]


def _of_files(client: AgentClient, jobs: Sequence[ModelJob], x_BCHW: Images) -> Iterator[Values]:
    """The values of each file, computed from those of the files before it."""
    values = {jobs[0].input_names[0]: x_BCHW}
    for job in jobs:
        found = client.run(job, [values[name] for name in job.input_names])
        values.update(zip(job.output_names, found, strict=True))
        yield list(found)


def _of_net(client: AgentClient, jobs: Sequence[ModelJob], x_BCHW: Images) -> list[Values]:
    """The answers of all exits from one net."""
    return [[answer] for answer in client.run(jobs[-1], [x_BCHW])]


def _difference(ours: Images, theirs: Images) -> float:
    return float(np.abs(ours - theirs).max() / max(float(np.abs(theirs).max()), SMALLEST))
