"""Plans from the tables of a run: their times, limits, links, the page, and the parts."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import tailor_ir
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains import PARTS_FILE, PartsManifest
from tasks.base.errors import UserError
from tasks.placement.partition import (
    PartitionAnswer,
    PlanRow,
    Settings,
    find_supernet,
    open_tables,
    plan_partition,
    write_parts,
)
from tasks.report.partition import picture, render
from tests.support.partition.finished_run import ENERGY_MJ, RATES, STEP_MS

Run = tuple[Path, tailor_ir.SuperNet]
DEVICES = ("phone", "server")
LATENCY_MS = 0.05


def answer_of(run: Run, **settings: Any) -> PartitionAnswer:
    given = Settings.model_validate({"devices": DEVICES, "latency_ms": LATENCY_MS, **settings})
    return plan_partition(run[1], run[1].max_config, open_tables(run[0], given.devices), given)


def devices_of(plan: PlanRow) -> list[str]:
    return [stay.device for stay in plan.stays]


def test_a_plan_splits_only_where_that_pays(run: Run) -> None:
    slow, middle, fast = answer_of(run, bandwidth_mbps=(0.01, 1.0, 1000.0)).plans
    operators = run[1].operators(run[1].max_config)
    coordinator_ms = sum(STEP_MS + one.macs / RATES["phone"] for one in operators)
    server_ms = sum(STEP_MS + one.macs / RATES["server"] for one in operators)
    assert devices_of(slow) == ["phone"]
    assert not slow.transfers
    assert slow.latency_ms == pytest.approx(coordinator_ms)
    assert devices_of(fast) == ["server"]
    sent_ms = 8 * sum(transfer.bytes for transfer in fast.transfers) / 1e6
    assert fast.latency_ms == pytest.approx(server_ms + sent_ms + 2 * LATENCY_MS)
    for plan in (slow, middle, fast):
        assert plan.latency_ms <= min(plan.others_ms.values()) * (1 + 1e-9)


def test_private_operators_stay_on_coordinator(run: Run) -> None:
    (plan,) = answer_of(run, bandwidth_mbps=(1000.0,), private=3).plans
    assert devices_of(plan) == ["phone", "server"]
    assert set(range(3)) <= set(plan.stays[0].operators)
    assert plan.transfers[0].bytes == answer_of(run).cuts[len(plan.stays[0].operators)].bytes


def test_memory_and_energy_are_kept(run: Run) -> None:
    parameters = sum(one.parameters for one in run[1].operators(run[1].max_config))
    most = 0.6 * parameters * 4 / 2**20
    (plan,) = answer_of(run, bandwidth_mbps=(1000.0,), memory_mib={"server": most}).plans
    answer = answer_of(run)
    there = [at for stay in plan.stays if stay.device == "server" for at in stay.operators]
    assert 0 < sum(answer.operators[at].parameters for at in there) * 4 / 2**20 <= most
    (plan,) = answer_of(run, bandwidth_mbps=(0.01,), energy_mj=3.2 * ENERGY_MJ).plans
    assert sum(len(stay.operators) for stay in plan.stays if stay.device == "phone") <= 3
    with pytest.raises(UserError, match=r"partition at 10 Mbit/s: no plan keeps the limits; raise partition.memory"):
        answer_of(run, bandwidth_mbps=(10.0,), memory_mib={"phone": 1e-5, "server": 1e-5})


def test_named_links_and_slow_devices_count(run: Run) -> None:
    link = {"phone-server": {"bandwidth_mbps": 0, "latency_ms": 0}}
    assert devices_of(answer_of(run, bandwidth_mbps=(1000.0,), links=link).plans[0]) == ["phone"]
    busy = answer_of(run, bandwidth_mbps=(1000.0,), slow_down={"server": 1e4})
    assert devices_of(busy.plans[0]) == ["phone"]


def test_throughput_is_of_the_slowest_stage(run: Run) -> None:
    (plan,) = answer_of(run, bandwidth_mbps=(5.0,), objective="throughput").plans
    assert plan.period_ms is not None
    times_ms = [*(stay.time_ms for stay in plan.stays), *(transfer.time_ms for transfer in plan.transfers)]
    assert plan.period_ms == pytest.approx(max(times_ms))
    assert plan.period_ms <= plan.latency_ms


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"devices": ("phone",)}, r"devices: got \[phone\]; allowed: two to 6 different names, the coordinator first"),
        ({"slow_down": {"board": 2}}, "slow_down.board: there is no such device; allowed: phone, server"),
        ({"links": {"phone-board": {"bandwidth_mbps": 1, "latency_ms": 1}}}, "links.phone-board: it joins no two"),
        ({"energy_mj": 1.0, "objective": "throughput"}, "energy_mj: it is a limit of one request"),
    ],
)
def test_settings_that_cannot_be_are_told(settings: dict[str, Any], line: str, run: Run) -> None:
    with pytest.raises(ValueError, match=line):
        answer_of(run, **settings)


def test_what_a_run_does_not_have_is_one_line(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"device 'board': has no table in .*; allowed: phone, server; measure it"):
        open_tables(run[0], ("phone", "board"))
    with pytest.raises(UserError, match=r"has no SuperNet; name one, supernet=FOLDER"):
        find_supernet(tmp_path)
    with pytest.raises(UserError, match=r"partition.private: got 999; allowed: 0 to"):
        answer_of(run, private=999)
    with pytest.raises(UserError, match=r"the energy of .* operators is not known on 'server'; leave it out"):
        answer_of(run, devices=("server", "phone"), energy_mj=1.0)


def test_the_page_has_every_cut_and_a_picture(run: Run) -> None:
    answer = answer_of(run)
    page = render(answer)
    assert page.count("<tr><td>") == len(answer.plans) + len(answer.cuts)
    found = ElementTree.fromstring(str(picture(answer)))
    notes = [title.text or "" for title in found.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(note.startswith("cut ") and " KiB" in note for note in notes) == len(answer.cuts)
    assert sum(" on phone, " in note or " on server, " in note for note in notes) == 3 * len(answer.operators)


def test_parts_are_files_with_a_manifest(run: Run, tmp_path: Path) -> None:
    (plan,) = answer_of(run, bandwidth_mbps=(1000.0,), private=3).plans
    manifest = write_parts(run[1], run[1].max_config, plan.stays, "phone", tmp_path)
    assert manifest == PartsManifest.read(tmp_path / PARTS_FILE)
    assert [part.device for part in manifest.parts] == ["phone", "server"]
    assert manifest.difference <= 1e-5
    (handed,) = manifest.needed_after(1)
    assert handed == manifest.parts[1].inputs[0] == manifest.parts[0].outputs[0]
    assert sum(part.macs for part in manifest.parts) == run[1].macs(run[1].max_config)
    (tmp_path / "1.onnx").write_bytes(b"something else")
    with pytest.raises(
        AdaptiveError, match=r"1\.onnx: is not the file that parts\.json names; export the SubNet again"
    ):
        PartsManifest.read(tmp_path / PARTS_FILE)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"version": 2}, "has version 2, of a later autotailor; allowed: 1; update autotailor here"),
        ({"files": {}}, "segment 0 is in '0.onnx', which is not among the files"),
        ({"parts": []}, "parts"),
    ],
)
def test_a_manifest_that_is_none_is_refused(change: dict[str, Any], line: str, run: Run, tmp_path: Path) -> None:
    (plan,) = answer_of(run, bandwidth_mbps=(1000.0,), private=3).plans
    manifest = write_parts(run[1], run[1].max_config, plan.stays, "phone", tmp_path)
    with pytest.raises(AdaptiveError, match=line):
        PartsManifest.from_json(json.dumps(json.loads(manifest.to_json()) | change))
