"""Resize in all of ONNX's modes, against onnxruntime."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from torch.nn import functional as F

import tailor_ir
from tailor_ir.graph import Node
from tailor_ir.ops.resample import resizing_matrices
from tests.unit.ir.around import check, check_file, file_around, is_elastic, network, node

MODES: dict[str, dict[str, Any]] = {
    "linear, from the corner": {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    "cubic, from the corner": {"mode": "cubic", "coordinate_transformation_mode": "asymmetric"},
    "cubic of Catmull and Rom": {"mode": "cubic", "cubic_coeff_a": -0.5},
    "cubic without what is outside": {"mode": "cubic", "exclude_outside": 1},
    "nearest, corners aligned": {"mode": "nearest", "coordinate_transformation_mode": "align_corners"},
    "nearest, rounded up": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"},
    "nearest, halves down": {"mode": "nearest", "coordinate_transformation_mode": "half_pixel"},
    "linear, from the middle": {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
    "linear, antialiased": {"mode": "linear", "antialias": 1},
    "cubic, antialiased": {"mode": "cubic", "antialias": 1, "cubic_coeff_a": -0.5},
}
SCALES = {"larger": [1, 1, 1.5, 2], "smaller": [1, 1, 0.5, 0.75], "uneven": [1, 1, 1.6, 0.7]}


@pytest.mark.parametrize("name", MODES)
def test_modes_of_files(name: str, tmp_path: Path) -> None:
    resize = node("Resize", "", "scales", **MODES[name])
    net = check_file(file_around([resize], {"scales": np.asarray([1, 1, 1.5, 0.75], np.float32)}, opset=19), tmp_path)
    assert is_elastic(net, "width_mult")


@pytest.mark.parametrize(("name", "scale"), list(itertools.product(MODES, SCALES)))
def test_matrices_are_what_onnxruntime_computes(name: str, scale: str) -> None:
    shape, scales = (1, 2, 10, 12), SCALES[scale]
    x = np.random.default_rng(0).random(shape).astype(np.float32)
    proto = helper.make_node("Resize", ["x", "", "scales"], ["y"], **MODES[name])
    graph = helper.make_graph(
        [proto],
        "resize",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(scales, np.float32), "scales")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    own = Node(name="r", op="Resize", inputs=("x",), outputs=("y",), attributes=tuple(MODES[name].items()))
    found = x
    for axis, matrix in resizing_matrices(own, shape, expected.shape, scales).items():
        found = np.moveaxis(np.moveaxis(found, axis, -1) @ matrix.T, -1, axis)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_sizes_of_some_axes(tmp_path: Path) -> None:
    """Opset 18: axes by number, and a ratio that is kept."""
    settings = {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}
    resize = node("Resize", "", "", "sizes", **settings)
    check_file(file_around([resize], {"sizes": np.asarray([12, 16])}, opset=18), tmp_path)


def test_a_region_of_interest_is_refused_for_its_reason() -> None:
    resize = node("Resize", "roi", "", "sizes", coordinate_transformation_mode="tf_crop_and_resize", mode="linear")
    tensors = {"roi": np.asarray([0, 0, 0, 0, 1, 1, 1, 1], np.float32), "sizes": np.asarray([1, 32, 4, 4])}
    with pytest.raises(tailor_ir.ImportFailed, match="reads a region of interest"):
        tailor_ir.compile(file_around([resize], tensors))


# -- factors whose products are rounded ------------------------------------------------------------------------------

FACTORS = {
    "up to a whole number in float32": (10, (1.3, 0.7)),
    "up along one axis, and down along the other": (10, (1.3, 1.25)),
    "down in float64, and up in float32": (100, (0.29, 0.57)),
    "up, beside an axis as it is": (10, (2.3, 1.0)),
    "at positions that fall on neighbours": (11, (1.7, 0.6)),
}
INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic")


@pytest.mark.parametrize("mode", INTERPOLATIONS)
@pytest.mark.parametrize("name", FACTORS)
def test_products_of_modules_are_those_of_torch(name: str, mode: str, tmp_path: Path) -> None:
    side, factors = FACTORS[name]
    check(network(lambda x: F.interpolate(x, scale_factor=factors, mode=mode)), tmp_path, side)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("name", FACTORS)
def test_products_of_files_are_those_of_onnxruntime(name: str, mode: str, recorded: bool, tmp_path: Path) -> None:
    """recorded: the file says the sizes, as torch.export does."""
    side, factors = FACTORS[name]
    settings = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"} if mode == "nearest" else {}
    resize = node("Resize", "", "scales", mode=mode, axes=[-2, 3], **settings)
    file = file_around([resize], {"scales": np.asarray(factors, np.float32)}, opset=18, side=side)
    if recorded:
        sizes = [int(np.float32(side) * np.float32(factor)) for factor in factors]
        shape: list[str | int | None] = ["batch", 32, *sizes]
        file.graph.value_info.append(helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, shape))
    check_file(file, tmp_path)


def test_products_behind_products(tmp_path: Path) -> None:
    first, second = (helper.make_node("Resize", [x, "", "scales"], [y], y) for x, y in (("a", "c"), ("c", "b")))
    check_file(file_around([first, second], {"scales": np.asarray([1, 1, 1.3, 1.1], np.float32)}, side=10), tmp_path)
