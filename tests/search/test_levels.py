"""Levels of a device: the front and the kept rows are exact, exits follow their SubNet, and each format has its files."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.bundles import BundleFormat
from flows.compose import compose_config
from flows.config import DeviceProfile, RunConfig
from flows.config.together import check_together
from flows.validate import validate
from tasks.errors import UserError
from tasks.exits.policies import MeasuredExit, PolicyOutcome, SubnetPolicy
from tasks.export import Settings as ExportSettings
from tasks.levels import LevelRow, Levels
from tasks.levels.exits import with_exits
from tasks.levels.stage import kept, on_front

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
@settings(max_examples=60, deadline=None)
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
        ({"onnxruntime": ("board",)}, r"export\.together\.onnxruntime: 'board' is no device; allowed: onnxruntime, "),
        ({"ncnn_bf16": ("onnxruntime",)}, r"backend=ncnn with precision=bf16; allowed: onnxruntime or ncnn on the CPU"),
        ({"onnxruntime": ("torch",)}, r"torch has backend=torch with precision=fp32, which no format"),
        ({"onnxruntime": ("ncnn", "ncnn")}, r"'ncnn' is there twice; allowed: each device once"),
        ({"onnxruntime": ("ncnn",)}, r"ncnn needs files of ncnn; allowed: export\.formats=\[onnx,onnx_int8,ncnn\]"),
        ({"onnxruntime": ("four",)}, r"batches differ \(onnxruntime 1, four 4\); allowed: one batch for all"),
    ],
)
def test_devices_that_cannot_share_a_bundle_are_one_line(together: dict[str, tuple[str, ...]], line: str) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        check_together(PROFILES, ExportSettings(formats=("onnx", "onnx_int8"), together=together))
    assert "\n" not in str(caught.value)


def test_int8_beside_nothing_has_no_bundle() -> None:
    words = ["export.bundle=true", "device=[onnxruntime,onnxruntime_int8]"]
    with pytest.raises(UserError, match=r"fp32 files; allowed: false, or int8 beside fp32 by export\.together"):
        validate(RunConfig, compose_config("config", words))
    together = "export.together={onnxruntime:[onnxruntime_int8]}"
    config = validate(RunConfig, compose_config("config", [*words, "export.formats=[onnx,onnx_int8]", together]))
    assert config.export.together == {"onnxruntime": ("onnxruntime_int8",)}
