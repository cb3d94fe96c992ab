"""Small networks with random devices, links, sensitivities and losses: joint problems whose codes can all be listed."""

from dataclasses import dataclass, field
from functools import cache
from itertools import product

import numpy as np
import torch

import tailor_ir
from profiling_agents.messages import ActivationCoding
from solvers.partition import PartitionConditions
from solvers.tables import Codes
from tailor_ir import NetworkPieces, OperatorFeature, SuperNet, find_pieces
from tasks.evaluation.subnets import Accuracy
from tasks.placement.joint_problem import JointSearch, JointSpace, JointTerms
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities
from tasks.search.settings import Settings
from tests.support.ir.networks import small_net

CODINGS: tuple[ActivationCoding, ...] = ("int8", "fp16", "fp32")
IMAGES = 1000
MOST_CODES = 400_000
NAMES = ("sizes", "alternatives", "exits")


@dataclass
class RandomTimes:
    """Random times, drawn when an operator is asked for first."""

    name: str
    rng: np.random.Generator
    offset_ms: float
    known: dict[OperatorFeature, float] = field(default_factory=dict)

    def operator_ms(self, feature: OperatorFeature) -> float:
        if feature not in self.known:
            self.known[feature] = float(self.rng.exponential())
        return self.known[feature]


@cache
def net_of(name: str) -> tuple[SuperNet, NetworkPieces]:
    """A SuperNet of few SubNets, and its pieces."""
    sample = torch.zeros(1, 3, 16, 16)
    match name:
        case "sizes":
            net = tailor_ir.compile(small_net(channels=4, hidden=4, blocks=2), sample)
        case "alternatives":
            net = tailor_ir.compile(small_net(channels=4, hidden=4, blocks=2), sample, {"alternatives": ["merged"]})
        case _:
            net = tailor_ir.compile(small_net(channels=4, hidden=4, blocks=2), sample, {"exits": "auto"})
    return net, find_pieces(net.pre_partition())


def random_accuracy(net: SuperNet, rng: np.random.Generator) -> AccuracyPredictor:
    """Of a training that there was not; mostly, not always, a modification loses accuracy."""
    measured = []
    for _ in modifications(net.space):
        right = int(rng.integers(600, 820))
        measured.append(Accuracy(right, IMAGES, 1 - right / IMAGES))
    measured[0] = Accuracy(800, IMAGES, 0.2)
    return AccuracyPredictor(sensitivities(net.space, measured))


def random_conditions(rng: np.random.Generator, devices: int) -> PartitionConditions:
    """Links of which some are fast, some slow, and some are not there."""
    mbps = np.exp(rng.uniform(-4, 4, (devices, devices))) * (rng.random((devices, devices)) < 0.9)
    return PartitionConditions(
        slow_down=rng.uniform(1.0, 3.0, devices),
        latency_ms=rng.exponential(0.3, (devices, devices)),
        bandwidth_mbps=mbps,
    )


def random_search(name: str, seed: int, devices: int, codings: int = 2, **changes: object) -> JointSearch:
    """A joint search. codings: the last so many of `CODINGS`. changes: of its terms."""
    net, pieces = net_of(name)
    rng = np.random.default_rng(seed)
    losses = rng.uniform(0.0, 0.02, (len(pieces.crossing), codings)) * (rng.random((1, codings)) < 0.7)
    losses[:, -1] = 0.0
    given: dict[str, object] = {
        "space": JointSpace(space=net.space, pieces=pieces, devices=devices, codings=codings),
        "devices": [RandomTimes(f"d{at}", rng, 0.1 * at) for at in range(devices)],
        "conditions": random_conditions(rng, devices),
        "codings": CODINGS[-codings:],
        "losses": losses,
        "returns": bool(rng.random() < 0.8),
        **changes,
    }
    terms = JointTerms(**given)  # type: ignore[arg-type]
    return JointSearch(terms, random_accuracy(net, rng), Settings(method="exact", tolerance=0.0))


def all_codes(search: JointSearch) -> Codes:
    """Every different SubNet with every placement and coding, canonical."""
    space = search.space
    subnets = np.array(list(product(*map(range, space.space.cardinalities.tolist()))))
    subnets = np.unique(space.space.canonical_codes(subnets), axis=0)
    placed = np.array(list(product(*map(range, space.cardinalities[space.variables :].tolist()))))
    assert len(subnets) * len(placed) <= MOST_CODES, (len(subnets), len(placed))
    both = np.concatenate([np.repeat(subnets, len(placed), axis=0), np.tile(placed, (len(subnets), 1))], axis=1)
    return np.unique(space.canonical_codes(both), axis=0)
