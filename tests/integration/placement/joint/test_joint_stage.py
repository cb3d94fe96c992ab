"""The joint search on tables of devices: plans of a real network, limits, links, losses, and the partition of a winner."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tailor_ir
from adaptive_runtime.bundle.chains import PARTS_FILE, PartsManifest
from flows.cli import main
from flows.cli.commands import write_chosen
from profiling_agents.messages import ActivationCoding
from tailor_ir import find_pieces
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.base.schemas.placed import JOINT_FILE, ChosenSubNet, JointFront
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData
from tasks.placement.codings import CodingLosses, measured_losses
from tasks.placement.joint import search_jointly
from tasks.placement.partition import PartitionAnswer, PlacementSettings, open_tables
from tasks.search.settings import Settings
from tasks.search.terminal import joint_table, placed_tables
from tests.support.ir.networks import small_net
from tests.support.joint.problems import random_accuracy

Run = tuple[Path, tailor_ir.SuperNet]
DEVICES = ("phone", "server")
LOSSES: dict[ActivationCoding, float] = {"int8": 0.01, "fp16": 0.0, "fp32": 0.0}


def front_of(run: Run, partition: dict[str, Any], **settings: Any) -> JointFront:
    folder, net = run
    given = Settings.model_validate(
        {"method": "exact", "placement": DEVICES, "partition": {"latency_ms": 0.05, **partition}, **settings}
    )
    pieces = find_pieces(net.pre_partition())
    lost = CodingLosses(
        images=100, accuracy=0.8, losses={name: (loss,) * len(pieces.crossing) for name, loss in LOSSES.items()}
    )
    accuracy = random_accuracy(net, np.random.default_rng(0))
    return search_jointly(net, pieces, open_tables(folder, DEVICES), accuracy, given, lost, Silent())


def test_a_slow_link_sends_nothing_and_a_fast_one_sends_early(run: Run) -> None:
    slow = front_of(run, {"bandwidth_mbps": 0.001})
    assert all(not row.plan.transfers and row.coding == "fp32" for row in slow.winners)
    assert all(row.predicted_ms == pytest.approx(row.home_ms) for row in slow.winners)
    fast = front_of(run, {"bandwidth_mbps": 1000.0})
    assert all({stay.device for stay in row.plan.stays} >= {"server"} for row in fast.winners)
    for row in fast.winners:
        assert row.predicted_ms <= row.budget_ms
        assert row.predicted_ms == pytest.approx(row.plan.latency_ms)
        assert row.home_ms is not None
        assert row.predicted_ms < row.home_ms
        assert row.predicted_ms <= min(row.plan.others_ms.values()) * (1 + 1e-9)


def test_a_joint_winner_is_no_less_accurate_than_that_at_home(run: Run) -> None:
    budgets_ms = [row.budget_ms for row in front_of(run, {"bandwidth_mbps": 0.001}).winners]
    alone = front_of(run, {"bandwidth_mbps": 0.001}, budgets_ms=budgets_ms).winners
    joint = front_of(run, {"bandwidth_mbps": 1.0}, budgets_ms=budgets_ms).winners
    assert all(one.predicted_score >= other.predicted_score - 1e-9 for one, other in zip(joint, alone, strict=True))


def test_private_operators_memory_and_missing_links_are_kept(run: Run) -> None:
    private = front_of(run, {"bandwidth_mbps": 1000.0, "private": 2})
    assert all(row.plan.stays[0].device == "phone" and len(row.plan.stays[0].operators) >= 2 for row in private.winners)
    most = 0.0005
    small = front_of(run, {"bandwidth_mbps": 1000.0, "memory_mib": {"server": most}})
    for row in small.winners:
        there = [at for stay in row.plan.stays if stay.device == "server" for at in stay.operators]
        operators = run[1].operators(row.config)
        assert sum(operators[at].parameters for at in there) * 4 / 2**20 <= most * (1 + 1e-9)
    link = {"phone-server": {"bandwidth_mbps": 0, "latency_ms": 0}}
    assert all(not row.plan.transfers for row in front_of(run, {"links": link}).winners)


def test_budgets_and_limits_that_nothing_keeps_are_one_line(run: Run) -> None:
    with pytest.raises(
        UserError, match=r"search.budgets_ms: 1e-06 ms is below the fastest SubNet, predicted .* on 'phone"
    ):
        front_of(run, {}, budgets_ms=(1e-6,))
    limits = {"phone": 1e-6, "server": 1e-6}
    with pytest.raises(UserError, match=r"search\.(partition\.memory_mib|limits)"):
        front_of(run, {"memory_mib": limits})


def test_a_front_is_shown_and_stored(run: Run, tmp_path: Path) -> None:
    found = front_of(run, {"bandwidth_mbps": 10.0})
    found.write(tmp_path / JOINT_FILE)
    assert JointFront.read(tmp_path / JOINT_FILE) == found
    table = joint_table(found)
    assert table.row_count == len(found.winners)
    assert table.title == "phone + server"


def test_a_winner_is_a_file_that_partition_takes(run: Run, tmp_path: Path) -> None:
    winner = front_of(run, {"bandwidth_mbps": 1000.0, "private": 2}).winners[-1]
    row = {
        "device": "phone",
        "rule": {"text": "the best within 5 ms"},
        "base": {"name": "base model", "accuracy": 0.8, "samples": None},
        "uncertainty": {},
        "indistinct": None,
        **winner.to_json(),
    }
    assert placed_tables(row).row_count == 5
    file = write_chosen(row, tmp_path / "both.json")
    chosen = ChosenSubNet.read(file)
    assert (chosen.plan, chosen.coding) == (winner.plan, winner.coding)
    words = [f"output_dir={run[0]}", f"subnet={file}", "partition.devices=[phone,server]", "partition.private=2"]
    words += ["partition.bandwidth_mbps=[1000]", "partition.latency_ms=0.05", f"partition.parts={tmp_path / 'parts'}"]
    assert main(["partition", *words, "--json", str(tmp_path / "plan.json")]) == 0
    answer = PartitionAnswer.of_json(json.loads((tmp_path / "plan.json").read_text()), "plan.json")
    assert answer.network == winner.digest
    assert answer.plans[0].latency_ms <= winner.predicted_ms * (1 + 1e-9)
    manifest = PartsManifest.read(tmp_path / "parts" / PARTS_FILE)
    assert [part.device for part in manifest.parts] == [stay.device for stay in answer.plans[0].stays]


def test_losses_are_measured_at_every_cut_and_zero_in_fp32() -> None:
    torch.manual_seed(0)
    network = small_net(channels=8, hidden=8, blocks=2)
    network.classifier = nn.Linear(8, 10)
    net = tailor_ir.compile(network, torch.zeros(1, 3, 16, 16))
    splits = load_splits(DataSettings(kind="digits", resolution=16))
    images = EvaluationData(splits["validation"], splits["train"], recalibration_images=64)
    found = measured_losses(net, images, PlacementSettings(coding_images=40), Silent())
    cuts = len(find_pieces(net.pre_partition()).crossing)
    assert found.images == 40
    assert set(found.losses) == {"fp32", "fp16", "int8"}
    assert all(len(losses) == cuts for losses in found.losses.values())
    assert set(found.losses["fp32"]) == {0.0}
    assert 0 <= min(found.losses["int8"]) <= max(found.losses["int8"]) <= found.accuracy
    assert max(found.losses["fp16"]) <= 0.05
    assert found.table(("int8", "fp32")).shape == (cuts, 2)


def test_budgets_of_a_placement_are_not_those_of_its_single_devices() -> None:
    given = Settings(placement=DEVICES, budgets_ms=(5.0,), device_budgets_ms={"server": (2.0,)})
    assert given.budgets_of("phone+server") == (5.0,)
    assert given.budgets_of("phone") is None
    assert given.budgets_of("server") == (2.0,)
    assert given.budgets_of("tablet") == (5.0,)
    assert given.of_devices(["phone"]).budgets_ms is None
    assert given.of_devices(["tablet"]).budgets_ms == (5.0,)
