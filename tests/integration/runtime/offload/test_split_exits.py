"""A chain with exits over several devices: an exit on the coordinator that is sure enough answers, and nothing is sent."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains import SEGMENTS_FILE, ChainManifest, ExitChain
from adaptive_runtime.exits import Thresholds
from adaptive_runtime.offload.links import DeviceAddress
from adaptive_runtime.offload.split import COORDINATOR, PlacedSegments, SplitNetwork, SplitOptions, SplitSubNet
from tests.support.links.devices import ServingDevice, are_in, inputs, same

DEADLINE_MS = 60_000.0
PLAN = PlacedSegments(devices=(COORDINATOR, COORDINATOR, "a", "a"))
REQUESTS = 24


def early(chain: Path, xs: list[Any]) -> Thresholds:
    """Thresholds by which some samples leave at the first exit, some at the second, and some at none."""
    sureness = []
    for exit in (0, 1):
        last = Thresholds(measure="top_probability", thresholds=(None,) * exit)
        with ExitChain.open(chain, last) as one:
            logits = np.concatenate([one.infer(x).logits for x in xs])
        shares = np.exp(logits - logits.max(1, keepdims=True))
        sureness.append((shares / shares.sum(1, keepdims=True)).max(1))
    bars = (float(np.quantile(sureness[0], 0.7)), float(np.quantile(sureness[1], 0.5)), None)
    return Thresholds(measure="top_probability", thresholds=bars)


def test_an_exit_on_coordinator_answers_and_nothing_is_sent(
    chain: Path, split: SplitSubNet, device: ServingDevice
) -> None:
    xs = inputs(split, REQUESTS)
    thresholds = early(chain, xs)
    opened = SplitSubNet.open(chain, thresholds=thresholds)
    assert opened.subnet.digest == split.subnet.digest, "devices have the same SubNet with and without exits"
    with (
        ExitChain.open(chain, thresholds) as whole,
        SplitNetwork(opened, {"a": device.address}, [PLAN], SplitOptions(check_share=1.0)) as network,
    ):
        assert are_in(network, "a"), network.states
        exits = []
        for x in xs:
            expected, found = whole.infer(x), network.infer(x, DEADLINE_MS)
            assert same(found.answer, expected.logits)
            exits.append(int(expected.exits[0]))
            left = exits[-1] < 2
            assert found.exit == (exits[-1] if left else None)
            assert found.devices == ((COORDINATOR,) if left else (COORDINATOR, "a"))
            assert found.segments[0].last == (exits[-1] if left else 1)
        assert set(exits) == {0, 1, 3}
        assert network.counts.exited == sum(exit < 2 for exit in exits)
        assert network.counts.by_device["a"] == exits.count(3)
        assert network.counts.wrong == 0


def test_exits_answer_without_the_device_too(chain: Path, split: SplitSubNet) -> None:
    xs = inputs(split, REQUESTS)
    thresholds = early(chain, xs)
    nobody = DeviceAddress(url="tcp://127.0.0.1:9", token="x" * 16)
    with (
        ExitChain.open(chain, thresholds) as whole,
        SplitNetwork(SplitSubNet.open(chain, thresholds=thresholds), {"a": nobody}, [PLAN]) as network,
    ):
        for x in xs:
            assert same(network.infer(x, DEADLINE_MS).answer, whole.infer(x).logits)
        assert 0 < network.counts.exited < REQUESTS


def test_exits_behind_another_device_are_not_asked(chain: Path, split: SplitSubNet, device: ServingDevice) -> None:
    always = Thresholds(measure="top_probability", thresholds=(0.0, 0.0, 0.0))
    away = PlacedSegments(devices=("a", COORDINATOR, COORDINATOR, "a"))
    with (
        ExitChain.open(chain) as whole,
        SplitNetwork(SplitSubNet.open(chain, thresholds=always), {"a": device.address}, [away]) as network,
    ):
        assert are_in(network, "a"), network.states
        (x,) = inputs(split, 1)
        found = network.infer(x, DEADLINE_MS)
        assert found.exit is None
        assert same(found.answer, whole.infer(x).logits)


def test_a_chain_ends_at_the_exit_of_the_full_answer(chain: Path, split: SplitSubNet) -> None:
    full = Thresholds(measure="top_probability", thresholds=(None,))
    opened = SplitSubNet.open(chain, thresholds=full)
    assert len(opened.subnet.segments) == 2
    with (
        ExitChain.open(chain, full) as whole,
        SplitNetwork(opened, {}, [PlacedSegments(devices=(COORDINATOR, COORDINATOR))]) as network,
    ):
        (x,) = inputs(split, 1)
        assert same(network.infer(x, DEADLINE_MS).answer, whole.infer(x).logits)


def test_thresholds_lie_in_the_chain_s_folder_or_are_refused(chain: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(chain, tmp_path / "chain"))
    manifest = ChainManifest.read(folder / SEGMENTS_FILE)
    (folder / SEGMENTS_FILE).write_text(manifest.model_copy(update={"thresholds": "thresholds.json"}).to_json())
    with pytest.raises(AdaptiveError, match=r"thresholds\.json: cannot be read"):
        SplitSubNet.open(folder)
    own = Thresholds(measure="top_probability", thresholds=(0.5, None, None))
    (folder / "thresholds.json").write_text(own.to_json())
    assert SplitSubNet.open(folder).thresholds == own
    many = Thresholds(measure="top_probability", thresholds=(0.5,) * 4)
    with pytest.raises(AdaptiveError, match="4 thresholds for 4 exits; allowed: at most 3; make them for this SubNet"):
        SplitSubNet.open(folder, thresholds=many)
