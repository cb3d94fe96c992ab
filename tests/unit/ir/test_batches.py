"""What a trace makes for its own batch follows the batch afterwards, or is refused in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F

import tailor_ir
from tailor_ir.reading.inputs import ExampleInputs
from tailor_ir.supernet import reading

STEPS, WIDTH, HEADS = 8, 16, 4
BATCHES = (1, 2, 3, 5)
TOLERANCE = 1e-5


class Reader(nn.Module):
    """Features of tokens (B, N), which `use` turns into features (B, D) or (B, N, D)."""

    def __init__(self, use: Callable[["Reader", torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.tokens, self.kinds = nn.Embedding(20, WIDTH), nn.Embedding(2, WIDTH)
        self.positions = nn.Parameter(torch.randn(HEADS, STEPS, WIDTH // HEADS))
        self.hidden = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, 3)
        self.use = use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x)
        return self.last(self.use(self, h + self.hidden(h), x))


def segments(m: Reader, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return h + m.kinds(torch.zeros_like(x))


def last_token(m: Reader, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return h[torch.arange(x.shape[0]), -1]


def two_tokens(m: Reader, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return h[torch.arange(x.shape[0])[:, None], torch.tensor([[1, 4]])].mean(1)


def largest_token(m: Reader, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return h[torch.arange(x.shape[0]), x.argmax(-1)]


def kept_by_indices(m: Reader, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    kept = (x > 3)[torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])[None]]
    return h * kept[..., None]


def repeated_positions(m: Reader, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    b, n, d = h.shape
    q = h.view(b, n, HEADS, d // HEADS).transpose(1, 2).reshape(b * HEADS, n, d // HEADS)
    scores = (q @ m.positions.repeat(b, 1, 1).transpose(1, 2)).softmax(-1)
    return (scores @ q).view(b, HEADS, n, d // HEADS).transpose(1, 2).reshape(b, n, d)


def mask_for_all(m: Reader, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    b, n, d = h.shape
    seen = torch.ones(n, n, dtype=torch.bool).tril()[None, None].repeat(b, 1, 1, 1)
    q = h.view(b, n, HEADS, d // HEADS).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=seen).transpose(1, 2).reshape(b, n, d)


def numbered_positions(m: Reader, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(x.shape[1]).repeat(x.shape[0], 1)
    return h + m.tokens(places)


def written_sizes(m: Reader, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.cat((h, torch.ones(int(x.shape[0]), 1, h.shape[2])), 1)


FOLLOWED = [
    *(segments, last_token, two_tokens, largest_token, kept_by_indices, repeated_positions, mask_for_all),
    *(numbered_positions, written_sizes),
]


@pytest.mark.parametrize("use", FOLLOWED)
def test_what_is_made_for_each_sample_follows_the_batch(
    use: Callable[[Reader, torch.Tensor, torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = Reader(use).eval()
    net = tailor_ir.compile(model, torch.randint(0, 20, (1, STEPS)))
    assert net.space.distinct > 1
    for batch in BATCHES:
        tokens = torch.randint(0, 20, (batch, STEPS))
        net.elastic.eval().activate(net.max_config)
        with torch.no_grad():
            torch.testing.assert_close(net.elastic(tokens), model(tokens), rtol=TOLERANCE, atol=TOLERANCE)
    config = net.space.sample(np.random.default_rng(0))
    net.elastic.activate(config)
    tokens = torch.randint(0, 20, tuple(net.input_shape(config, batch=2)))
    with torch.no_grad():
        expected = net.elastic(tokens)
        torch.testing.assert_close(net.build(config)(tokens), expected, rtol=TOLERANCE, atol=TOLERANCE)
    net.export(config, tmp_path / "net.onnx", batch=2)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-4)


def one_by_one(m: Reader, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.stack([m.hidden(sample).mean(0) for sample in h])


def numbered_samples(m: Reader, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return h * torch.arange(x.shape[0])[:, None, None]


def first_sample(m: Reader, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return h - h[1:2]


@pytest.mark.parametrize("use", [one_by_one, numbered_samples, first_sample])
def test_what_tells_samples_apart_is_refused_in_one_line(
    use: Callable[[Reader, torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    allowed = "networks that treat all samples alike|the same for each sample"
    with pytest.raises(tailor_ir.ImportFailed, match=rf"sample.*allowed: ({allowed})") as told:
        tailor_ir.compile(Reader(use).eval(), torch.randint(0, 20, (1, STEPS)))
    assert "\n" not in str(told.value)


# -- files -----------------------------------------------------------------------------------------------------------


def strided_file(positions: np.ndarray, batch: int) -> onnx.ModelProto:
    """A classifier whose pooled features (B, 32, 1, 1) are flattened and read at positions, as of `as_strided`."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("GlobalAveragePool", ["c"], ["g"]),
        helper.make_node("Reshape", ["g", "flat"], ["f"]),
        helper.make_node("Gather", ["f", "positions"], ["s"], axis=0),
        helper.make_node("Reshape", ["s", "rows"], ["t"]),
        helper.make_node("Gemm", ["t", "v", "d"], ["y"], transB=1),
    ]
    shapes = {"w": (32, 3, 3, 3), "b": (32,), "v": (10, 32), "d": (10,)}
    stored = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in shapes.items()
    ]
    numbers = {"flat": [-1], "positions": positions, "rows": [batch, 32]}
    stored += [numpy_helper.from_array(np.asarray(value, np.int64), name) for name, value in numbers.items()]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, *shape])
        for name, shape in (("x", (3, 8, 8)), ("y", (10,)))
    ]
    graph = helper.make_graph(nodes, "strided", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


TOGETHER: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x - x.mean(0),
    lambda x: x.softmax(0),
    lambda x: x.cumsum(0),
    lambda x: x * 1e-9 + (1e-9 * x).prod() * x,  # in the largest SubNet nothing of it is seen
    lambda x: F.layer_norm(x.transpose(0, 2), x.shape[:1]).transpose(0, 2),
    lambda x: x + torch.einsum("bnd,bnd->nd", x, x),
    lambda x: x + x.flatten(0, 1).mean(0),
    lambda x: x + x.argmax(0),
]


@pytest.mark.parametrize("together", TOGETHER)
def test_operators_that_put_samples_together_are_refused_by_their_axes(
    together: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    def use(m: Reader, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return together(h)

    with pytest.raises(tailor_ir.ImportFailed, match=r"^operator '\w+' at .*computes with all samples") as told:
        tailor_ir.compile(Reader(use).eval(), torch.randint(0, 20, (1, STEPS)))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("order", [np.arange(32), np.random.default_rng(1).permutation(32)])
def test_strided_reads_of_a_file_are_those_of_each_sample(order: np.ndarray, batch: int) -> None:
    positions = order.reshape(1, 32, 1, 1) + 32 * np.arange(batch).reshape(-1, 1, 1, 1)
    net = tailor_ir.compile(strided_file(positions, batch))
    net.elastic.eval().activate(net.max_config)
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        together = net.elastic(x)
        torch.testing.assert_close(torch.cat([net.elastic(one[None]) for one in x]), together)
    assert together.shape == (4, 10)


def test_a_file_that_reads_one_sample_for_all_is_refused_in_one_line() -> None:
    positions = np.repeat(np.arange(32).reshape(1, 32, 1, 1), 2, 0)
    with pytest.raises(
        tailor_ir.ImportFailed, match=r"batch 3\); allowed: networks that treat all samples alike"
    ) as told:
        tailor_ir.compile(strided_file(positions, 2))
    assert "\n" not in str(told.value)


class Attention(nn.Module):
    """Query, key and value are three parts of the features: as many as the trace has samples."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.last = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.parts(x).reshape(x.shape[0], STEPS, 3, WIDTH)
        query, key, value = parts.permute(2, 0, 1, 3).unbind(0)
        return self.last((query @ key.transpose(-2, -1)).softmax(-1) @ value)


def test_parts_of_features_are_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network is traced once more only if a value might be made for the samples of the trace."""
    samples: list[int] = []
    trace = reading.trace_module

    def noted(model: nn.Module, examples: ExampleInputs, count: int) -> Any:
        samples.append(count)
        return trace(model, examples, count)

    monkeypatch.setattr(reading, "trace_module", noted)
    model = Attention().eval()
    net = tailor_ir.compile(model, torch.randn(1, STEPS, WIDTH))
    x = torch.randn(2, STEPS, WIDTH)
    torch.testing.assert_close(net.elastic.eval()(x), model(x), rtol=TOLERANCE, atol=TOLERANCE)
    assert samples == [3]
    with pytest.raises(tailor_ir.ImportFailed):
        tailor_ir.compile(Reader(one_by_one).eval(), torch.randint(0, 20, (1, STEPS)))
    assert samples == [3, 3, 5]
