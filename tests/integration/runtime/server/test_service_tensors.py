"""The codec of the service: what is packed is unpacked, and everything else is one line."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from adaptive_runtime.server.protocol import DATATYPES, NamedTensor, RequestRefused, pack, split, unpack, values_of
from tests.support import examples

FINITE: dict[str, Any] = {"allow_nan": False, "allow_infinity": False}
TENSORS = st.lists(
    st.tuples(
        st.text(max_size=8),
        st.sampled_from([*DATATYPES.values()]).flatmap(
            lambda dtype: arrays.arrays(
                dtype,
                arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4),
                elements=FINITE if dtype.kind == "f" else None,
            )
        ),
        st.booleans(),
    ).map(NamedTensor._make),
    min_size=1,
    max_size=4,
)


@given(TENSORS)
@settings(max_examples=examples(100), deadline=None)
def test_tensors_come_back_as_they_were_sent(tensors: list[NamedTensor]) -> None:
    packed = pack({"id": "7"}, "inputs", tensors)
    assert (packed.json_bytes is None) == (not any(tensor.binary for tensor in tensors))
    request, binary = unpack(packed.content, None if packed.json_bytes is None else str(packed.json_bytes))
    found = [values_of(sent, blob) for sent, blob in zip(request.inputs, split(request.inputs, binary), strict=True)]
    assert [sent.name for sent in request.inputs] == [tensor.name for tensor in tensors]
    for got, tensor in zip(found, tensors, strict=True):
        assert got.dtype == tensor.values.dtype
        assert got.shape == tensor.values.shape
        assert got.tobytes() == tensor.values.tobytes() or (got == tensor.values).all()


@given(TENSORS, st.data())
@settings(max_examples=examples(50), deadline=None)
def test_a_body_that_is_cut_off_is_refused(tensors: list[NamedTensor], data: st.DataObject) -> None:
    packed = pack({}, "inputs", tensors)
    cut = data.draw(st.integers(0, len(packed.content) - 1))
    length = None if packed.json_bytes is None else str(packed.json_bytes)
    with pytest.raises(RequestRefused):
        read(packed.content[:cut], length)


def read(content: bytes, length: str | None) -> list[Any]:
    """The values of all tensors of a request."""
    request, binary = unpack(content, length)
    return [values_of(sent, blob) for sent, blob in zip(request.inputs, split(request.inputs, binary), strict=True)]


@given(st.binary(max_size=200), st.none() | st.text(max_size=20))
@settings(max_examples=examples(100), deadline=None)
def test_any_bytes_are_refused_in_one_line(content: bytes, length: str | None) -> None:
    with pytest.raises(RequestRefused) as found:
        unpack(content, length)
    assert found.value.status == 400
    assert "\n" not in str(found.value)


def test_values_that_json_has_no_number_for_are_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        pack({}, "outputs", [NamedTensor("logits", np.array([np.nan], np.float32), False)])
    assert pack({}, "outputs", [NamedTensor("logits", np.array([np.nan], np.float32), True)]).json_bytes


@pytest.mark.parametrize(
    ("data", "line"),
    {
        "text": (["1", "2"], "is no such list"),
        "a base64 string": ("AAAA", "is no such list"),
        "ragged": ([[1, 2], [3]], "is no such list"),
        "null": ([1, None], "is no such list"),
        "too few": ([1], "data of shape [1]"),
        "too deep": ([[[1]], [[2]]], "data of shape [2, 1, 1]"),
        "beyond fp32": ([1e300, 1], "has NaN or infinite values"),
        "beyond all numbers of 64 bits": ([10**30, 1], "is no such list"),
    }.values(),
)
def test_other_data_is_one_line(data: Any, line: str) -> None:
    row = {"name": "x", "datatype": "FP32", "shape": [2], "data": data}
    request, _ = unpack(json.dumps({"inputs": [row]}).encode(), None)
    with pytest.raises(RequestRefused, match="tensor 'x'") as found:
        values_of(request.inputs[0], None)
    assert line in str(found.value)
