"""A bundle from whose segments a search puts SubNets together, and images for it."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import tailor_ir
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, OpenBundle
from adaptive_runtime.local_search import LocalSearchSettings, known_latencies, latency_ms
from tests.support.ir.networks import small_net
from tests.support.runtime.bundled import write_plain_bundle

IMAGES = 48
LIKELY_MS = 0.2
"""Of the bundle's SubNets, as of those that a search puts together and times."""


class SearchingDevice(NamedTuple):
    """A bundle with segments, images with labels, and a folder with latencies that all searches share."""

    net: tailor_ir.SuperNet
    bundle: OpenBundle
    images: Path
    latencies: Path

    @property
    def budget_ms(self) -> float:
        blocks = self.bundle.blocks()
        return latency_ms(blocks.largest, known_latencies(self.bundle, blocks, self.latencies).ms_E)

    def settings(self, **changes: Any) -> LocalSearchSettings:
        told = {"budget_ms": self.budget_ms, "population": 4, "generations": 3, "range_share": 0.5, "patience": 3}
        return LocalSearchSettings(**{**told, **changes})

    def folder(self, parent: Path, name: str) -> Path:
        """A folder for a search, with the latencies."""
        found = parent / name
        found.mkdir()
        (found / "latencies.json").write_bytes((self.latencies / "latencies.json").read_bytes())
        return found


def searching_device(folder: Path) -> SearchingDevice:
    """One in a folder."""
    torch.manual_seed(0)
    space = {"alternatives": ["merged", "pruned", "low_rank"]}
    net = tailor_ir.compile(small_net(blocks=3), torch.randn(1, 3, 16, 16), space)
    manifest = write_plain_bundle(net, [net.max_config, net.min_config], folder / "bundle", blocks=True)
    subnets = tuple(one.model_copy(update={"predicted_ms": LIKELY_MS}) for one in manifest.subnets)
    (folder / "bundle" / BUNDLE_FILE).write_text(manifest.model_copy(update={"subnets": subnets}).to_json())
    rng = np.random.default_rng(0)
    x = rng.standard_normal((IMAGES, 3, 16, 16)).astype(np.float32)
    np.savez(folder / "own.npz", x=x, y=rng.integers(0, 5, IMAGES))
    bundle = OpenBundle.open(folder / "bundle")
    (folder / "latencies").mkdir()
    assert known_latencies(bundle, bundle.blocks(), folder / "latencies").took_s > 0
    return SearchingDevice(net, bundle, folder / "own.npz", folder / "latencies")
