"""Chains of segments from block to block compute what built SubNets compute, and are all SubNets."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tailor_ir
from tailor_ir.errors import SpaceError
from tailor_ir.spaces.selectors import SpaceSpec
from tests.support import examples, long
from tests.support.ir.networks import from_timm, small_net

SAMPLE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
TOLERANCE = 1e-5


class Exported:
    """The segments of a network's SubNets as files that are loaded."""

    def __init__(self, net: tailor_ir.SuperNet, folder: Path, config: tailor_ir.Config | None = None) -> None:
        self.net, self.config = net, dict(net.max_config if config is None else config)
        self.segments = net.block_segments(self.config)
        net.export_together({}, folder, blocks=(self.config, None))
        self.files = [folder / f"blocks.{at}.onnx" for at in range(len(self.segments))]
        self.sessions = [onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]) for file in self.files]

    def path(self, rng: np.random.Generator) -> list[int]:
        at, last, found = 0, max(one.end for one in self.segments), []
        while at < last:
            number = int(rng.choice([n for n, one in enumerate(self.segments) if one.start == at]))
            found.append(number)
            at = self.segments[number].end
        return found

    def config_of(self, path: Sequence[int]) -> tailor_ir.Config:
        chosen = {one.variable: str(one.choice) for one in (self.segments[n] for n in path) if one.variable is not None}
        return self.net.space.canonical({**self.config, **chosen})

    def run(self, path: Sequence[int], x: torch.Tensor) -> np.ndarray:
        value = x.numpy()
        for number in path:
            session = self.sessions[number]
            (value,) = session.run(None, {session.get_inputs()[0].name: value})
        return value

    def paths(self) -> int:
        count = [1]
        for end in range(1, max(one.end for one in self.segments) + 1):
            count.append(sum(count[one.start] for one in self.segments if one.end == end))
        return count[-1]


def check(exported: Exported, path: Sequence[int], x: torch.Tensor) -> None:
    config = exported.config_of(path)
    with torch.no_grad():
        expected = exported.net.build(config)(x).numpy()
    assert np.abs(exported.run(path, x) - expected).max() <= TOLERANCE * np.abs(expected).max()


@cache
def small(blocks: int, kinds: tuple[str, ...]) -> Exported:
    net = tailor_ir.compile(small_net(blocks=blocks), SAMPLE[:1], {"alternatives": list(kinds)})
    return Exported(net, Path(mkdtemp()))


@pytest.mark.long
@settings(max_examples=examples(12), deadline=None)
@given(
    blocks=st.integers(2, 4),
    kinds=st.sampled_from([("merged", "pruned"), ("merged", "low_rank", "separable"), ("ghost",)]),
    seed=st.integers(0, 1000),
)
def test_a_chain_of_segments_is_the_built_subnet(blocks: int, kinds: tuple[str, ...], seed: int) -> None:
    exported = small(blocks, kinds)
    check(exported, exported.path(np.random.default_rng(seed)), SAMPLE[:1])
    assert exported.paths() == exported.net.space.distinct


@pytest.mark.parametrize("name", [long("mobilenetv2_050"), long("vit_tiny_patch16_224")])
def test_families_of_networks_are_chains_of_segments(name: str, tmp_path: Path) -> None:
    model, sample = from_timm(name)
    net = tailor_ir.compile(model, sample, {"alternatives": ["merged", "pruned", "low_rank"]})
    exported = Exported(net, tmp_path)
    assert exported.paths() == net.space.distinct
    rng = np.random.default_rng(0)
    for _ in range(3):
        path = exported.path(rng)
        check(exported, path, sample)
        macs = sum(exported.segments[number].macs for number in path)
        assert macs == net.macs(exported.config_of(path))


def test_variables_of_other_kinds_stay_as_they_are_given(tmp_path: Path) -> None:
    spec: SpaceSpec = {"alternatives": ["merged", "pruned"], "*.depth": "auto", "*.width_mult": [0.5, 1]}
    net = tailor_ir.compile(small_net(blocks=3), SAMPLE[:1], spec)
    smaller = {name: choice for name, choice in net.max_config.items() if not name.endswith(".block")}
    smaller |= {v.name: v.choices[0] for v in net.space.variables if v.kind == "width_mult"}
    exported = Exported(net, tmp_path, smaller)
    for seed in range(4):
        check(exported, exported.path(np.random.default_rng(seed)), SAMPLE[:1])


def test_weights_of_segments_are_stored_once(tmp_path: Path) -> None:
    net = tailor_ir.compile(small_net(channels=32, hidden=64), SAMPLE[:1], {"alternatives": ["merged", "pruned"]})
    names = {"largest": (net.max_config, None)}
    for folder, blocks in (("with", (net.max_config, None)), ("without", None)):
        (tmp_path / folder).mkdir()
        net.export_together(names, tmp_path / folder, blocks=blocks)
    alone, together = ((tmp_path / name / "weights.safetensors").stat().st_size for name in ("without", "with"))
    own = sum(4 * one.parameters for one in net.block_segments() if one.variable is not None)
    assert together <= alone + 1.2 * own


def test_a_network_without_alternatives_has_no_such_segments() -> None:
    net = tailor_ir.compile(small_net(), SAMPLE[:1], {"*.width_mult": [0.5, 1]})
    with pytest.raises(SpaceError, match=r"no block has alternatives; compile it with alternatives: auto"):
        net.block_segments()
