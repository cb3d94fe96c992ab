"""A run with two devices, whose bundle has SubNets over both: front, export, and a row over a device that answers."""

from typing import Any

import numpy as np
import pytest

import adaptive_runtime
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.bundle.chains import ImagePreparation
from adaptive_runtime.pool import Variant
from flows.config import RetargetConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tasks.base.errors import UserError
from tasks.export.operating_points import Levels
from tests.support.flows.fixtures import Command
from tests.support.flows.prefect_server import wait_for
from tests.support.links.devices import serving

COORDINATOR, OTHER = "onnxruntime", "ncnn_bf16"


def levels_of(own: Command) -> Levels:
    (file,) = own.output.glob(f"stages/front/{COORDINATOR}/*/levels.json")
    return Levels.read(file)


def test_the_front_keeps_rows_over_devices_that_some_link_prefers(leveled: tuple[dict[str, Any], Command]) -> None:
    report, own = leveled
    found = levels_of(own)
    over = [row for row in found.rows if row.over]
    assert over
    assert {row.over for row in over} == {(OTHER,)}
    assert found.placed
    assert set(found.placed) <= set(found.whole("onnx"))
    shown = [row["answers"] for row in report["devices"][0]["levels"]["shown"]]
    assert shown.count(f"over {OTHER}") == len(found.placed)


def test_the_bundle_has_the_kept_ones_and_another_device_answers(leveled: tuple[dict[str, Any], Command]) -> None:
    _, own = leveled
    (folder,) = (one for one in own.output.glob(f"exports/{COORDINATOR}/bundle"))
    bundle, kept = OpenBundle.open(folder), levels_of(own).placed
    there = {one.digest: one.placement for one in bundle.manifest.subnets if one.placement is not None}
    assert set(there) == set(kept) & {one.digest for one in bundle.manifest.subnets}
    for digest, placement in there.items():
        assert placement.devices == (OTHER,)
        assert placement.latency_ms == pytest.approx(kept[digest].latency_ms)
        assert placement.coding == "int8"
        first = bundle.manifest.by_digest[digest].first_accuracy
        assert placement.accuracy == pytest.approx(first, abs=0.05), "a share of the images, and of other answers"
    bundle.verify_all()
    digest = next(iter(there))
    subnet = bundle.manifest.by_digest[digest]
    assert isinstance(subnet.preparation, ImagePreparation)
    size = subnet.preparation.resolution
    x = np.random.default_rng(0).standard_normal((1, subnet.input_shape[1], size, size)).astype(np.float32)
    with (
        serving("ncnn") as device,
        adaptive_runtime.load(folder, 60_000.0, adapts=True, prepares=False, devices={OTHER: device.address}) as model,
    ):
        model.chooser = lambda _: Variant(digest, placed=True)
        over = wait_for(lambda: answer if (answer := model.infer(x)).devices else None, "an answer over both devices")
        model.chooser = lambda _: Variant(digest)
        on_coordinator = wait_for(
            lambda: None if (answer := model.infer(x)).devices else answer, "an answer of the coordinator alone"
        )
    assert OTHER in over.devices
    assert (over.subnet, on_coordinator.subnet) == (digest, digest)
    assert 0 < np.abs(over.logits - on_coordinator.logits).max() <= 0.1 * np.abs(on_coordinator.logits).max(), (
        "in int8, or in fp32"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), r"export\.offload=true without partition\.devices; allowed: partition\.devices=\[COORDINATOR,DEVICE…\]"),
        (
            ("partition.devices=[onnxruntime,onnxruntime_int8]",),
            r"onnxruntime_int8 is in int8, which is another accuracy",
        ),
        (
            ("partition.devices=[onnxruntime_int8,onnxruntime]",),
            r"onnxruntime_int8 has backend=onnxruntime with precision",
        ),
        (
            ("partition.devices=[onnxruntime,ncnn]", "partition.objective=throughput"),
            r"plans: they are of requests that the coordinator answers; allowed with objective=latency",
        ),
    ],
)
def test_devices_that_cannot_be_placed_over_are_one_line(words: tuple[str, ...], line: str) -> None:
    own = ["export.bundle=true", "export.offload=true", "device=[onnxruntime,ncnn,onnxruntime_int8]", *words]
    own += ["export.formats=[onnx,onnx_int8,ncnn]", "export.shared_bundle={ncnn:[onnxruntime_int8]}"]
    with pytest.raises(UserError, match=line):
        validate(RetargetConfig, compose_config("retarget", ["supernet=.", *own]))


def test_placed_rows_are_of_a_bundle() -> None:
    with pytest.raises(
        UserError, match=r"offload=true with bundle=false: rows over devices are part of a bundle; allowed: bundle=true"
    ):
        validate(RetargetConfig, compose_config("retarget", ["supernet=.", "export.offload=true"]))
