"""A bundle whose largest SubNet may also run over another device, which the coordinator believes to be faster than itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import tailor_ir
from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, BundleManifest, FileFacts, SubNetLatency
from profiling_agents.messages import ActivationCoding
from tailor_ir import SubnetDataflow, SuperNet
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData
from tasks.placement.bundled import BundlePlacements
from tasks.placement.partition.settings import PartitionSettings, RadioSettings
from tests.support.ir.networks import perturb, small_net
from tests.support.runtime.bundled import write_plain_bundle

SERVER = "server"
LARGE_MJ, SMALL_MJ = 100.0, 40.0
"""Of one sample on the coordinator."""
SPACE: dict[str, Any] = {"*.width_mult": [0.5, 1]}


@dataclass(frozen=True)
class TimesByMacs:
    """Operators that take as long as their multiply-accumulates do."""

    name: str
    macs_per_ms: float
    offset_ms: float = 0.0

    def compute_ms(self, dataflow: SubnetDataflow) -> np.ndarray:
        return np.asarray([0.01 + one.feature.macs / self.macs_per_ms for one in dataflow.operators])

    def energy_mj(self, dataflow: SubnetDataflow) -> np.ndarray:
        raise NotImplementedError("no energy of operators is limited")


class PlacedBundle(NamedTuple):
    """A bundle, its folder, and images for it."""

    folder: Path
    manifest: BundleManifest
    x: np.ndarray

    @property
    def large(self) -> str:
        return self.manifest.subnets[0].digest

    @property
    def small(self) -> str:
        return self.manifest.subnets[1].digest


def made_net() -> SuperNet:
    """A small SuperNet."""
    torch.manual_seed(0)
    return tailor_ir.compile(perturb(small_net(blocks=3)), torch.randn(1, 3, 16, 16), SPACE)


def sample_images() -> EvaluationData:
    """Some glyphs, as the SuperNet takes them."""
    splits = load_splits(DataSettings(kind="glyphs", images=400, classes=5, resolution=16, workers=1))
    return EvaluationData(splits["validation"], splits["train"], limit=64)


def placements(errors: Mapping[str, float], coding: ActivationCoding | None = None) -> BundlePlacements:
    """A phone and a server, over links from slow to fast."""
    settings = PartitionSettings(
        devices=("phone", SERVER),
        bandwidth_mbps=(100.0,),
        latency_ms=1.0,
        plans_bandwidth_mbps=(1.0, 1000.0),
        coding=coding,
        radio=RadioSettings(sending_mw=100.0, mw_per_mbps=10.0, waiting_mw=10.0),
    )
    return BundlePlacements((TimesByMacs("phone", 1e4), TimesByMacs(SERVER, 1e9)), settings, errors)


def write_placed_bundle(folder: Path, coding: ActivationCoding | None = None, *, both: bool = False) -> PlacedBundle:
    """The largest SubNet, on the coordinator and over the server, and the smallest one there. coding: of values that cross.

    both: the smallest one is over the server, too.
    """
    net = made_net()
    plain = write_plain_bundle(net, [net.max_config, net.min_config], folder)
    large, small = plain.subnets
    made = placements({large.digest: 0.1, **({small.digest: 0.1} if both else {})}, coding)
    placement = made.write(net, net.max_config, None, folder, sample_images())
    assert placement is not None
    of_small = made.write(net, net.min_config, None, folder, sample_images())
    latency = SubNetLatency(p50_ms=20.0, p90_ms=20.0, spread=0.0, n=10, noisy=False)
    rows = (
        large.model_copy(update={"latency": latency, "energy_mj": LARGE_MJ, "placement": placement}),
        small.model_copy(
            update={
                "latency": latency.model_copy(update={"p50_ms": 10.0}),
                "energy_mj": SMALL_MJ,
                "placement": of_small,
            }
        ),
    )
    files = sorted(file for file in folder.iterdir() if file.name != BUNDLE_FILE)
    facts = {file.name: FileFacts(sha256=sha256_of(file), bytes=file.stat().st_size) for file in files}
    manifest = plain.model_copy(update={"subnets": rows, "files": facts})
    (folder / BUNDLE_FILE).write_text(manifest.to_json())
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    return PlacedBundle(folder, BundleManifest.from_json(manifest.to_json()), x)
