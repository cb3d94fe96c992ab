"""Device profiles against real agents: each is the device that its profile says, or refused in one line."""

import json
from pathlib import Path
from typing import Any


def test_devices_of_other_runtimes_precisions_and_batches_go_through_every_stage(
    adapted: tuple[dict[str, Any], Path],
) -> None:
    result, output = adapted
    assert [device["name"] for device in result["devices"]] == ["torch", "ncnn_bf16"]
    for device in result["devices"]:
        assert all(winner["measured_ms"] > 0 for winner in device["winners"])
    cards = {name: output.glob(f"stages/export/{name}/*/exports.json") for name in ("torch", "ncnn_bf16")}
    torch_card, ncnn_card = (json.loads(next(paths).read_text())["subnets"][0] for paths in cards.values())
    assert torch_card["input_shape"][0] == 4
    assert torch_card["files"]["onnx"]["runtime"] == "torch"
    assert torch_card["files"]["onnx"]["state"] == "ok"
    assert ncnn_card["files"]["ncnn"]["precision"] == "bf16"
    assert 1e-4 < ncnn_card["files"]["ncnn"]["relative_difference"] <= 0.3
