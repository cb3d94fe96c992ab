"""Random steps, devices and links, and all plans of a small problem."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from solvers.partition import (
    INPUT,
    Dataflow,
    PartitionConditions,
    PartitionLimit,
    PartitionPlan,
    PartitionProblem,
    SentValue,
    plan_of,
    segments_of,
)


def random_dataflow(rng: np.random.Generator, steps: int, *, shortcuts: float = 0.3) -> Dataflow:
    """A chain whose values are, with this share, read by later steps, too; the last value is the output."""
    values = []
    for writer in range(INPUT, steps):
        readers = {writer + 1}
        readers |= {step for step in range(writer + 2, steps) if rng.random() < shortcuts / 2}
        values.append(SentValue(writer=writer, readers=tuple(sorted(readers)), bytes=float(rng.integers(0, 50_000))))
    return Dataflow(steps=steps, values=tuple(values))


def random_graph(rng: np.random.Generator, steps: int) -> Dataflow:
    """Steps that each read one or two earlier values, in any shape; what nobody reads is an output."""
    readers: dict[int, set[int]] = {writer: set() for writer in range(INPUT, steps)}
    for step in range(steps):
        for writer in rng.integers(INPUT, step, size=int(rng.integers(1, 3))):
            readers[int(writer)].add(step)
    values = [
        SentValue(writer=writer, readers=tuple(sorted(found)) or (steps,), bytes=float(rng.integers(1, 50_000)))
        for writer, found in readers.items()
    ]
    return Dataflow(steps=steps, values=tuple(values))


def random_problem(
    rng: np.random.Generator, dataflow: Dataflow, devices: int, *, limited: bool = False, private: int = 0
) -> PartitionProblem:
    compute_ms = rng.uniform(0.1, 5.0, (dataflow.steps, devices)) * rng.uniform(0.2, 2.0, devices)
    limits = []
    if limited:
        for device in range(devices):
            weights = rng.uniform(0.0, 10.0, dataflow.steps)
            most = float(rng.uniform(0.3, 0.9) * weights.sum())
            limits.append(PartitionLimit.of_memory(device, devices, weights.tolist(), most))
        energy = PartitionLimit(
            name="energy of the coordinator",
            per_step=np.where(np.arange(devices) == 0, compute_ms, 0.0),
            per_byte=np.where(np.arange(devices)[:, None] == 0, 1e-5, 0.0) * np.ones((devices, devices)),
            most=float(rng.uniform(0.5, 1.2) * compute_ms[:, 0].sum()),
        )
        limits.append(energy)
    coordinator = 0 if limited else int(rng.integers(devices))
    returns = bool(rng.random() < 0.7)
    return PartitionProblem(
        dataflow=dataflow,
        compute_ms=compute_ms,
        coordinator=coordinator,
        returns=returns,
        private=private,
        limits=tuple(limits),
    )


def random_conditions(rng: np.random.Generator, devices: int, *, latency_ms: float = 5.0) -> PartitionConditions:
    return PartitionConditions(
        slow_down=rng.uniform(1.0, 3.0, devices),
        latency_ms=rng.uniform(0.0, latency_ms, (devices, devices)) if latency_ms else np.zeros((devices, devices)),
        bandwidth_mbps=rng.uniform(5.0, 200.0, (devices, devices)),
    )


def all_plans(problem: PartitionProblem, conditions: PartitionConditions) -> Iterator[PartitionPlan]:
    """Every placement that is allowed, its steps in their order."""
    allowed = problem.allowed
    choices = [np.flatnonzero(row).tolist() for row in allowed]
    for placement in product(*choices):
        yield plan_of(problem, conditions, segments_of(placement))
