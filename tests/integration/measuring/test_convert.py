"""NCNN models that pnnx makes compute what the ONNX models compute, joined or not."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tasks.evaluation.ncnn import conversion
from tasks.evaluation.ncnn.conversion import ConversionError, ConversionLimits, convert, convert_operators
from tasks.evaluation.ncnn.files import NcnnFiles
from tests.support.tables.ncnn_runs import run_ncnn
from tests.support.tables.operator_models import OPERATORS, convolution, model

TOLERANCE = 1e-5  # relative to the largest output


@pytest.fixture(scope="module")
def converted() -> dict[str, NcnnFiles | ConversionError]:
    return dict(zip(OPERATORS, convert_operators(list(OPERATORS.values())), strict=True))


@pytest.mark.parametrize("name", OPERATORS)
def test_converted_operator_computes_what_onnxruntime_computes(
    name: str, converted: dict[str, NcnnFiles | ConversionError], tmp_path: Path
) -> None:
    files = converted[name]
    assert isinstance(files, NcnnFiles), files
    session = onnxruntime.InferenceSession(OPERATORS[name], providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(value.shape, dtype=np.float32) for value in session.get_inputs()]
    expected = session.run(None, {f"in{index}": array for index, array in enumerate(inputs)})
    got = run_ncnn(files, inputs, len(expected), tmp_path)
    for one, other in zip(got, expected, strict=True):
        assert one.size == other.size
        difference = np.abs(one.reshape(other.shape) - other).max()
        assert difference <= TOLERANCE * np.abs(other).max()


def test_operators_run_without_the_batch_axis_as_inside_a_network(
    converted: dict[str, NcnnFiles | ConversionError],
) -> None:
    files = converted["softmax"]
    assert isinstance(files, NcnnFiles), files
    (softmax,) = [layer for layer in files.layers() if layer.kind == "Softmax"]
    assert softmax.number(0) == 2  # axis 3 of (1, 4, 17, 17) is axis 2 of (4, 17, 17)


def test_no_mark_of_the_batch_axis_is_left(converted: dict[str, NcnnFiles | ConversionError]) -> None:
    for name, files in converted.items():
        assert isinstance(files, NcnnFiles), files
        kinds = [layer.kind for layer in files.layers()]
        assert kinds.count("BatchNorm") == (name == "batch_normalization"), name


def test_weights_stay_with_their_operator() -> None:
    models = [convolution(4, filters, 6) for filters in (3, 5, 7)]
    for files, filters in zip(convert_operators(models), (3, 5, 7), strict=True):
        assert isinstance(files, NcnnFiles), files
        assert len(files.bin) == 4 + 4 * (filters * 4 * 9) + 4 * filters


def test_a_bad_operator_among_joined_ones_fails_alone() -> None:
    proto = onnx.load_from_string(OPERATORS["gemm"])
    proto.graph.node[0].op_type = "NoSuchOperator"  # pnnx crashes
    determinant = model([("Det", ["in0"], ["out0"], {})], [(1, 3, 3)], [(1,)], {})
    models = [OPERATORS["gemm"], proto.SerializeToString(), determinant, OPERATORS["softmax"]]
    good, crashing, unknown, also_good = convert_operators(models)
    assert isinstance(good, NcnnFiles)
    assert isinstance(also_good, NcnnFiles)
    assert str(crashing).startswith("pnnx ")
    assert "\n" not in str(crashing)
    assert str(unknown) == "ncnn has no layer for 'Det'"


def test_joined_models_are_bounded_in_number_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "MAX_MODELS", 3)
    monkeypatch.setattr(conversion, "MAX_BYTES", 10)
    assert list(conversion.groups([b"x"] * 4)) == [[0, 1, 2], [3]]
    assert list(conversion.groups([b"123456", b"123456", b"12345678901234"])) == [[0], [1], [2]]


def test_garbage_gives_one_clear_line() -> None:
    with pytest.raises(ConversionError, match="pnnx") as caught:
        convert(b"garbage")
    assert "\n" not in str(caught.value)


def test_a_conversion_past_its_wall_time_is_killed() -> None:
    with pytest.raises(ConversionError, match=r"longer than 0\.01 s"):
        convert(OPERATORS["convolution"], ConversionLimits(wall_s=0.01))


def test_a_conversion_past_its_memory_is_stopped() -> None:
    with pytest.raises(ConversionError, match=r"pnnx .*(SIG|code)"):
        convert(OPERATORS["convolution"], ConversionLimits(memory_mib=100))


@pytest.mark.parametrize(
    ("kind", "kernel", "include", "size", "after"),
    [
        ("AveragePool", 1, 0, 1, 1),
        ("AveragePool", 2, 1, 2, 1),
        ("AveragePool", 2, 1, 5, 3),
        ("AveragePool", 2, 0, 5, 3),
        ("MaxPool", 1, None, 1, 1),
        ("MaxPool", 3, None, 6, 3),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_pools_that_round_up_are_those_of_onnx(
    kind: str, kernel: int, include: int | None, size: int, after: int, alone: bool, tmp_path: Path
) -> None:
    attributes: dict[str, Any] = {"kernel_shape": [kernel] * 2, "strides": [2, 2], "ceil_mode": 1}
    attributes |= {} if include is None else {"count_include_pad": include}
    pool = model([(kind, ["in0"], ["out0"], attributes)], [(1, 4, size, size)], [(1, 4, after, after)], {})
    files = convert(pool) if alone else convert_operators([pool, OPERATORS["softmax"]])[0]
    assert isinstance(files, NcnnFiles), files
    x = np.random.default_rng(0).normal(size=(1, 4, size, size)).astype(np.float32)
    session = onnxruntime.InferenceSession(pool, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"in0": x})
    (got,) = run_ncnn(files, [x], 1, tmp_path)
    assert np.allclose(got.reshape(expected.shape), expected, atol=TOLERANCE)
