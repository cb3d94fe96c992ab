"""Levels of a device: the front and the kept rows are exact, exits follow their SubNet, and each format has its files."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.bundle.bundles import BundleFormat
from adaptive_runtime.offload.split import COORDINATOR, LinkUse, PlannedPlacement
from flows.config import DeviceProfile, RunConfig
from flows.config.compose import compose_config
from flows.config.devices import check_together
from flows.config.validate import validate
from tasks.base.errors import UserError
from tasks.exits.policies import MeasuredExit, PolicyOutcome, SubnetPolicy
from tasks.export import Settings as ExportSettings
from tasks.export.operating_points import LevelRow, Levels
from tasks.export.operating_points.stage import kept, on_front, with_exits
from tasks.placement.bundled import OtherDevices, PlacedCosts, PlacedLevel
from tasks.placement.partition.settings import PartitionSettings, RadioSettings
from tests.support import examples

SHARES = st.sampled_from([0.5, 0.6, 0.7, 0.8])
COSTS = st.sampled_from([1.0, 2.0, 3.0, 6.0])


def level(number: int, accuracy: float, latency_ms: float, energy_mj: float | None, memory_mib: float) -> LevelRow:
    return LevelRow(
        digest=f"{number:016x}",
        config={},
        device="board",
        format="onnx",
        accuracy=accuracy,
        accuracy_error=0.01,
        latency_ms=latency_ms,
        latency_error=0.1,
        energy_mj=energy_mj,
        weights_mib=memory_mib,
        activations_mib=0.0,
    )


@given(st.lists(st.tuples(SHARES, COSTS, COSTS, COSTS), min_size=1, max_size=12))
@settings(max_examples=examples(60), deadline=None)
def test_the_front_is_what_no_other_row_dominates(columns: list[tuple[float, float, float, float]]) -> None:
    rows = [level(number, *one) for number, one in enumerate(columns)]
    signed = [(-row[0], *row[1:]) for row in columns]
    expected = [
        not any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in signed)
        for own in signed
    ]
    found, preferred = on_front(rows), kept(rows)
    assert found.tolist() == expected
    for at in np.flatnonzero(found):  # a row that nothing dominates is kept, or an equal one is
        assert any(preferred[other] for other in range(len(rows)) if signed[other] == signed[at])


def test_a_row_that_is_dominated_within_its_octave_is_left_out() -> None:
    rows = [level(0, 0.8, 4.0, 2.0, 1.0), level(1, 0.7, 5.0, 2.0, 1.0), level(2, 0.6, 1.0, 1.0, 1.0)]
    assert kept(rows).tolist() == [True, False, True]
    assert on_front(rows).tolist() == [True, False, True]


def test_a_row_whose_energy_is_unknown_is_neither_frugal_nor_spending() -> None:
    known, unknown = level(0, 0.8, 4.0, 2.0, 1.0), level(1, 0.8, 4.0, None, 1.0)
    worse, slower = level(2, 0.7, 5.0, None, 1.0), level(3, 0.7, 5.0, 3.0, 1.0)
    assert on_front([known, unknown]).tolist() == [True, True]
    assert on_front([known, unknown, worse, slower]).tolist() == [True, True, False, False]
    assert on_front([unknown, slower]).tolist() == [True, True]  # it may take more energy than the other
    assert on_front([unknown, worse]).tolist() == [True, False]
    over = over_devices(known, 20.0, 10_000, energy_mj=None)
    assert OtherDevices((), LINKED, 0.0).preferred([known], [over]).tolist() == [True]
    assert OtherDevices((), LINKED, 0.0).preferred([unknown], [over]).tolist() == [False]


def policy() -> SubnetPolicy:
    exits = [
        MeasuredExit(exit=name, alone_ms=ms, latency_ms=ms, accuracy={"validation": share})
        for name, ms, share in (("early", 4.0, 0.6), ("late", 10.0, 0.8))
    ]
    tested = PolicyOutcome(
        images=100,
        accuracy=0.78,
        full_accuracy=0.8,
        expected_ms=6.0,
        p50_ms=5.0,
        p90_ms=9.0,
        p99_ms=10.0,
        whole_ms=10.0,
        saved=0.4,
    )
    thresholds = {"measure": "top_probability", "thresholds": [0.5, None]}
    return SubnetPolicy(digest="0" * 16, config={}, exits=tuple(exits), thresholds=thresholds, tested=tested)


def test_exits_of_another_format_follow_the_whole_subnet() -> None:
    own = level(0, 0.8, 10.0, 20.0, 1.0)
    changed = {"device": "fast", "format": "ncnn", "accuracy": 0.79, "latency_ms": 5.0, "energy_mj": 8.0}
    fast = own.model_copy(update=changed)
    whole, exit, early = with_exits(fast, own, policy())
    assert whole == fast
    assert (exit.exit, exit.latency_ms, exit.energy_mj) == ("early", pytest.approx(2.0), pytest.approx(3.2))
    assert exit.accuracy == pytest.approx(0.59)
    assert exit.latency_error == 0.25
    assert (early.early, early.latency_ms, early.accuracy) == (True, pytest.approx(3.0), pytest.approx(0.77))
    assert [row.exit for row in with_exits(own, own, policy())] == [None, "early", None]
    int8 = own.model_copy(update={"format": "onnx_int8"})
    assert list(with_exits(int8, own, policy())) == [int8]
    assert len({row.name for row in (*with_exits(fast, own, policy()), *with_exits(own, own, policy()))}) == 6


def test_levels_of_a_format_are_found_by_digest() -> None:
    own = level(0, 0.8, 10.0, 20.0, 1.0)
    found = Levels(device="board", energy_from="model", rows=tuple(with_exits(own, own, policy())))
    assert found.formats == ("onnx",)
    assert found.whole("onnx") == {own.digest: own}
    form: BundleFormat = "ncnn"
    assert found.whole(form) == {}
    figures = own.figures("validation")
    assert (figures.first_accuracy, figures.latency_ms, figures.memory.total_mib) == (0.8, 10.0, 1.0)


PROFILES: dict[str, DeviceProfile] = {
    "onnxruntime": DeviceProfile(backend="onnxruntime"),
    "ncnn": DeviceProfile(backend="ncnn"),
    "ncnn_bf16": DeviceProfile(backend="ncnn", precision="bf16"),
    "torch": DeviceProfile(backend="torch"),
    "four": DeviceProfile(backend="onnxruntime", precision="int8", batch=4),
}


@pytest.mark.parametrize(
    ("together", "line"),
    [
        (
            {"onnxruntime": ("board",)},
            r"export\.shared_bundle\.onnxruntime: 'board' is no device; allowed: onnxruntime, ",
        ),
        ({"ncnn_bf16": ("onnxruntime",)}, r"backend=ncnn with precision=bf16; allowed: onnxruntime or ncnn on the CPU"),
        ({"onnxruntime": ("torch",)}, r"torch has backend=torch with precision=fp32, which no format"),
        ({"onnxruntime": ("ncnn", "ncnn")}, r"'ncnn' is there twice; allowed: each device once"),
        ({"onnxruntime": ("ncnn",)}, r"ncnn needs files of ncnn; allowed: export\.formats=\[onnx,onnx_int8,ncnn\]"),
        ({"onnxruntime": ("four",)}, r"batches differ \(onnxruntime 1, four 4\); allowed: one batch for all"),
    ],
)
def test_devices_that_cannot_share_a_bundle_are_one_line(together: dict[str, tuple[str, ...]], line: str) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        check_together(PROFILES, ExportSettings(formats=("onnx", "onnx_int8"), shared_bundle=together))
    assert "\n" not in str(caught.value)


def test_int8_beside_nothing_has_no_bundle() -> None:
    words = ["export.bundle=true", "device=[onnxruntime,onnxruntime_int8]"]
    with pytest.raises(UserError, match=r"fp32 files; allowed: false, or int8 beside fp32 by export\.shared_bundle"):
        validate(RunConfig, compose_config("config", words))
    together = "export.shared_bundle={onnxruntime:[onnxruntime_int8]}"
    config = validate(RunConfig, compose_config("config", [*words, "export.formats=[onnx,onnx_int8]", together]))
    assert config.export.shared_bundle == {"onnxruntime": ("onnxruntime_int8",)}


LINKED = PartitionSettings(devices=("phone", "server"), latency_ms=1.0, plans_bandwidth_mbps=(1.0, 1000.0))


def over_devices(coordinator: LevelRow, others_ms: float, up_bytes: int, **changed: object) -> PlacedLevel:
    """A row over the server, which computes all of it."""
    use = LinkUse(messages=1, up_bytes=up_bytes, down_bytes=0)
    plan = PlannedPlacement(devices=("server",), coordinator_ms=0.0, others_ms=others_ms, links={"server": use})
    row = coordinator.model_copy(update={"over": ("server",), **changed})
    return PlacedLevel(row, (plan,))


def test_rows_over_devices_are_kept_where_some_link_or_load_prefers_them() -> None:
    coordinator = level(0, 0.8, 4.0, None, 1.0)
    fast, slow, hopeless = (over_devices(coordinator, ms, 10_000) for ms in (0.5, 8.0, 20.0))
    assert OtherDevices((), LINKED, 0.0).preferred([coordinator], [fast]).tolist() == [True]
    assert OtherDevices((), LINKED, 0.0).preferred([coordinator], [slow]).tolist() == [
        True
    ]  # under load the coordinator takes 16 ms
    assert OtherDevices((), LINKED, 0.0).preferred([coordinator], [hopeless]).tolist() == [False]
    calm = LINKED.model_copy(update={"plans_slow_down": (1.0, 1.0)})
    assert OtherDevices((), calm, 0.0).preferred([coordinator], [slow]).tolist() == [False]
    assert OtherDevices((), LINKED, 0.0).preferred([coordinator], [fast, fast]).tolist() == [
        True,
        False,
    ]  # of equal ones the first
    narrow = LINKED.model_copy(update={"plans_bandwidth_mbps": (0.01, 0.02)})
    assert OtherDevices((), narrow, 0.0).preferred([coordinator], [fast]).tolist() == [False]
    spending = level(0, 0.8, 4.0, 10.0, 1.0)
    frugal = over_devices(spending, 20.0, 10_000, energy_mj=3.0)
    assert OtherDevices((), LINKED, 0.0).preferred([spending], [frugal]).tolist() == [True]


def test_what_a_plan_takes_follows_from_links_and_radio() -> None:
    use = LinkUse(messages=1, up_bytes=125_000, down_bytes=0)
    sends = PlannedPlacement(devices=(COORDINATOR, "server"), coordinator_ms=2.0, others_ms=1.0, links={"server": use})
    alone = PlannedPlacement(devices=(COORDINATOR, COORDINATOR), coordinator_ms=8.0, others_ms=0.0)
    settings = LINKED.model_copy(update={"bandwidth_mbps": (1.0, 10.0, 100.0)})
    costs = PlacedCosts.of((alone, sends), settings)
    assert costs is not None
    assert (costs.bandwidth_mbps, costs.coordinator_share, costs.sent_mj) == (10.0, 0.25, None)
    assert costs.latency_ms == pytest.approx(2.0 + 1.0 + 2 * 1.0 + 100.0)  # a Mbit over 10 Mbit/s
    radio = RadioSettings(sending_mw=100.0, mw_per_mbps=10.0, waiting_mw=50.0)
    known = PlacedCosts.of((alone, sends), settings.model_copy(update={"radio": radio}))
    assert known is not None
    assert known.sent_mj == pytest.approx(1.0 * (10.0 + 100.0 / 10.0) + 0.05 * (105.0 - 2.0))
    assert PlacedCosts.of((alone,), settings) is None
