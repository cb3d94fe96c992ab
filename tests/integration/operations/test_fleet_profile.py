"""Devices of one kind share a table, and find the odd one out: real relay, registry and client; devices are simulated."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tailor_ir
from benchmarks.rollout_fleet import KINDS
from benchmarks.thin_devices import ThinDevice, true_ms
from flows.cli import main
from profiling_agents.client import AgentError, MeasureSettings
from profiling_agents.messages import Measurement, Timing
from tailor_ir import OperatorFeature
from tasks.base.progress import Silent
from tasks.base.schemas.placed import OPERATORS_FILE
from tasks.measuring import profile
from tasks.measuring.lut import LutStore
from tasks.measuring.operators import write_operators
from tasks.operations.fleet.devices import list_devices
from tasks.operations.fleet.profiling import (
    FleetProfile,
    ProfiledKind,
    RelayAccess,
    assign_operators,
    judge,
    middle,
    profile_fleet,
    references,
)
from tasks.operations.fleet.settings import FleetProfileSettings
from tests.support.agents import agent_models as models
from tests.support.fleet.served_registry import RELAY_TOKEN, ServedRegistry
from tests.support.ir.networks import small_net

KIND = KINDS[0]
SETTINGS = FleetProfileSettings()


@pytest.fixture(scope="module")
def operators() -> dict[str, OperatorFeature]:
    net = tailor_ir.compile(small_net(blocks=2), torch.zeros(1, 3, 16, 16), {"*.width_mult": [0.25, 0.5, 0.75, 1]})
    found = {feature.digest: feature for feature in net.unique_operators()}
    assert len(found) >= 16
    return dict(sorted(found.items())[:16])


@contextmanager
def living(service: ServedRegistry, relay: str, faults: dict[str, str]) -> Iterator[dict[str, str]]:
    """Devices that pull, in a thread of their own; the fault of each, by its number."""
    loop, counts = asyncio.new_event_loop(), Counter[str]()
    thin = [ThinDevice(number, KIND, fault, 0, counts) for number, fault in enumerate(faults.values())]
    ended = asyncio.Event()

    async def live() -> None:
        tasks = [asyncio.create_task(one.pull(relay)) for one in thin]
        await ended.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    for one in thin:
        loop.run_until_complete(one.enrol(service.url, service.token()))
    thread = threading.Thread(target=loop.run_until_complete, args=(live(),))
    thread.start()
    try:
        yield {one.device: one.fault for one in thin}
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def profiled(relay: str, devices: dict[str, str], operators: dict[str, OperatorFeature], store: Path) -> ProfiledKind:
    rng = np.random.default_rng(0)
    found: FleetProfile = profile_fleet(
        list(devices), RelayAccess(relay, RELAY_TOKEN), operators, store, SETTINGS, rng, Silent()
    )
    assert found.away == {}
    (kind,) = found.kinds
    return kind


def by_command(
    service: ServedRegistry, relay: str, operators: dict[str, OperatorFeature], folder: Path
) -> dict[str, Any]:
    """`autotailor fleet profile` for all devices of the registry, of which few answer; what it says of the only kind."""
    enumerated = folder / "enumerated"
    enumerated.mkdir()
    write_operators(enumerated / OPERATORS_FILE, {feature: {} for feature in operators.values()})
    (folder / "token").touch(mode=0o600)
    (folder / "token").write_text(RELAY_TOKEN)
    place = [f"database=sqlite:///{service.log.parent}/fleet.db", f"store={folder / 'luts'}"]
    words = [*place, f"relay={relay}", f"token_file={folder / 'token'}", "--json", str(folder / "found.json")]
    assert main(["fleet", "profile", str(enumerated), *words]) == 0
    found = json.loads((folder / "found.json").read_text())
    (kind,) = found["kinds"]
    return dict(kind)


def states(kind: ProfiledKind, devices: dict[str, str]) -> dict[str, set[str]]:
    """By fault."""
    told: dict[str, set[str]] = {}
    for one in kind.verdicts:
        told.setdefault(devices[one.device], set()).add(one.state)
    return told


@pytest.mark.long
def test_devices_share_a_table_that_the_odd_ones_have_no_part_in(
    service: ServedRegistry, relay: str, operators: dict[str, OperatorFeature], tmp_path: Path
) -> None:
    bad = ("invented latencies", "odd latencies", "replays", "disconnects")
    faults = {str(number): fault for number, fault in enumerate((*bad, *("",) * 10))}
    with living(service, relay, faults) as devices:
        kind = profiled(relay, devices, operators, tmp_path / "luts")
        assert states(kind, devices) == {
            "": {"sound"},
            "invented latencies": {"outlier"},
            "odd latencies": {"outlier"},
            "replays": {"outlier"},
            "disconnects": {"failed"},
        }
        assert (kind.operators, kind.measured) == (16, 16)
        (folder,) = LutStore(tmp_path / "luts").folders()
        for row in LutStore(folder).valid_rows():
            assert row["p50_ms"] == pytest.approx(true_ms(row["digest"], KIND), rel=0.2)
        assert {row["settings"] for row in LutStore(folder).valid_rows()} == {
            profile.Settings(method="alone").measured_with("alone")
        }
    with living(service, relay, {"one": "", "two": "odd latencies"}) as devices:
        later = by_command(service, relay, operators, tmp_path)
    assert (later["operators"], later["measured"]) == (16, 0), (
        "the table is there: newcomers are checked against it alone"
    )
    assert later["measurements"] <= 3 * SETTINGS.spot_operators
    with service.registry.reading() as connection:
        told = {devices[row.id]: row for row in list_devices(connection) if row.id in devices}
    assert {fault: row.verdict for fault, row in told.items()} == {"": "sound", "odd latencies": "outlier"}
    assert {row.lut for row in told.values()} == {folder.name}
    assert "times as long" in str(told["odd latencies"].verdict_reason)


def test_an_agent_that_never_comes_to_an_end_costs_its_time_limit_alone(service: ServedRegistry, relay: str) -> None:
    with living(service, relay, {"one": "hangs"}) as devices:
        (device,) = devices
        with RelayAccess(relay, RELAY_TOKEN).client(device) as client:
            assert client.capabilities().cpu_model == KIND.name
            with (
                client.within(2.0),
                pytest.raises(AgentError, match="within the time that it was given"),
                client.lease(),
            ):
                list(client.measure([models.convolution("onnxruntime", "a")], MeasureSettings()))


def told(key: str, ms: float | None) -> Measurement:
    if ms is None:
        return Measurement.failed(key, "it broke")
    return Measurement.ok(key, Timing(p50_ms=ms, p90_ms=ms, spread=0.0, n=9, repeats=1, noisy=False))


def test_a_check_keeps_its_promise_about_errors() -> None:
    assert SETTINGS.most_off(8) == 4
    assert SETTINGS.found_share(8, SETTINGS.off_share) <= SETTINGS.false_alarms
    assert SETTINGS.found_share(8, 0.9) > 0.99
    assert SETTINGS.most_off(2) is None
    with pytest.raises(ValueError, match="spot_operators 2 cannot tell an outlier from chance"):
        FleetProfileSettings(spot_operators=2)


@pytest.mark.parametrize(
    ("times", "state"),
    [
        ([1.24] * 8, "sound"),
        ([1.3] * 4 + [1.0] * 4, "sound"),
        ([1.3] * 5 + [1.0] * 3, "outlier"),
        ([0.5] * 8, "outlier"),
        ([None] * 5 + [1.0] * 3, "outlier"),
        ([1.0, 1.0], "unknown"),
    ],
)
def test_a_device_is_odd_where_chance_does_not_explain_it(times: list[float | None], state: str) -> None:
    found = judge("d", [told(f"{at}", ms) for at, ms in enumerate(times)], {f"{at}": 1.0 for at in range(8)}, SETTINGS)
    assert found.state == state
    assert found.compared == (len(times) if state != "unknown" else 0)


def test_what_is_known_of_an_operator_is_what_most_devices_say() -> None:
    votes = {"a": {"1": told("a", 1.0), "2": told("a", 50.0), "3": told("a", 1.1)}, "b": {"1": told("b", 2.0)}}
    assert references(votes, {"c": 3.0}) == {"a": 1.1, "c": 3.0}
    failed = middle([told("a", None), told("a", None), told("a", 1.0)])
    assert failed is not None
    assert failed.state == "failed"


@pytest.mark.long
def test_missing_operators_are_dealt_evenly_and_nobody_knows_which_are_known() -> None:
    missing, known = [f"m{at}" for at in range(40)], [f"k{at}" for at in range(20)]
    hands = assign_operators(10, missing, known, SETTINGS, np.random.default_rng(0))
    assert set(Counter(one for hand in hands for one in hand).values()) == {SETTINGS.each_by}
    assert {len(set(hand)) for hand in hands} == {20}
    hands = assign_operators(10, missing[:3], known, SETTINGS, np.random.default_rng(0))
    assert {len(set(hand)) for hand in hands} == {SETTINGS.spot_operators}
    assert all(set(missing[:3]) <= set(hand) for hand in hands)
    assert assign_operators(1, [], [], SETTINGS, np.random.default_rng(0)) == [[]]
