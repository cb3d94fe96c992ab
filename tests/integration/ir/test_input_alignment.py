"""Images are aligned in front of a SubNet in torch and in every file; usual images get the answers of the SubNet alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import tailor_ir
from tailor_ir import Config, InputAlignment, Statistics, SuperNet
from tailor_ir.subnets.batch_norms import statistics_names
from tests.support.ir.elastic_networks import Transformer, inverted
from tests.support.ir.networks import perturb, small_net

TOLERANCE = 1e-5
"""Of the largest output, fp32."""
IMAGES = 4


class ReadsTwice(nn.Module):
    """The head reads features, and the image itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Conv2d(3, 16, 3, padding=1), inverted(3), nn.Linear(19, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.block(torch.relu(self.stem(x)))
        return self.head(torch.cat([features.mean((2, 3)), x.mean((2, 3))], 1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": lambda: small_net(blocks=3),
    "attention": lambda: Transformer(embedding=True, bias=False),
    "image read twice": ReadsTwice,
}


@pytest.fixture(scope="module", params=NETWORKS)
def net(request: pytest.FixtureRequest) -> SuperNet:
    torch.manual_seed(0)
    made = perturb(NETWORKS[request.param]())
    space = {"exits": ["stage.1.block.*"]} if request.param == "convolutions" else None
    return tailor_ir.compile(made, torch.zeros(1, 3, 32, 32), space)


def usual(net: SuperNet, config: Config, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    _, *sizes = net.input_shape(config)
    return torch.randn(IMAGES, *sizes, generator=generator) + 0.1 * torch.randn(IMAGES, 3, 1, 1, generator=generator)


def unusual(net: SuperNet, config: Config, seed: int) -> torch.Tensor:
    """Hazy, dark, full of contrast, and lit in one colour."""
    x_BCHW = usual(net, config, seed)
    light_B3 = torch.tensor([[2.0, 2.0, 2.0], [-1.0, -1.0, -1.0], [0.0, 0.0, 0.0], [1.0, 0.0, -1.0]])
    contrast_B = torch.tensor([0.1, 0.5, 3.0, 1.0])
    return contrast_B[:, None, None, None] * x_BCHW + light_B3[..., None, None]


def aligning(net: SuperNet, config: Config) -> InputAlignment:
    return InputAlignment.of([usual(net, config, seed) for seed in range(8)], 4.0)


def answers(file: Path, x_BCHW: torch.Tensor, **others: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    name, *_ = (one.name for one in session.get_inputs())
    size = session.get_inputs()[0].shape[0]
    parts = [session.run(None, {name: x.numpy(), **others})[0] for x in x_BCHW.split(size)]
    return np.concatenate(parts)


def difference(found: np.ndarray, expected: torch.Tensor) -> float:
    return float(np.abs(found - expected.numpy()).max() / expected.abs().max())


def own_tensors(net: SuperNet, config: Config) -> Statistics:
    return net.recalibrate(config, [usual(net, config, 20)]) | aligning(net, config).tensors()


def test_networks_in_torch_align_first(net: SuperNet) -> None:
    config, alignment = net.min_config, aligning(net, net.min_config)
    plain, x_BCHW = net.build(config), unusual(net, config, 9)
    with torch.inference_mode():
        found = net.build(config, alignment.tensors())(x_BCHW)
        assert torch.equal(found, plain(alignment(x_BCHW)))
        assert difference(plain(x_BCHW).numpy(), found) > 0.01


@pytest.mark.parametrize("fold", [False, True])
def test_files_align_first_and_answer_usual_images_as_without(net: SuperNet, fold: bool, tmp_path: Path) -> None:
    config, alignment = net.max_config, aligning(net, net.max_config)
    for name, tensors in (("plain", None), ("aligned", alignment.tensors())):
        net.export(config, tmp_path / f"{name}.onnx", statistics=tensors, fold_batch_norm=fold, batch=2)
    x_BCHW, usual_BCHW = unusual(net, config, 9), usual(net, config, 9)
    assert torch.equal(alignment(usual_BCHW), usual_BCHW)
    with torch.inference_mode():
        expected = net.build(config)(alignment(x_BCHW))
    assert difference(answers(tmp_path / "aligned.onnx", x_BCHW), expected) <= TOLERANCE
    plain, aligned = (answers(tmp_path / f"{name}.onnx", usual_BCHW) for name in ("plain", "aligned"))
    assert np.array_equal(plain, aligned)


def test_parts_of_a_split_subnet_align_whatever_reads_the_image(net: SuperNet, tmp_path: Path) -> None:
    config, tensors = net.max_config, own_tensors(net, net.max_config)
    count = len(net.pre_partition().under(net.space.row(config)).operators)
    groups = [range(count // 2), range(count // 2, count)]
    net.export_parts(config, groups, tmp_path, statistics=tensors, fold_batch_norm=True)
    x_BCHW = unusual(net, config, 9)[:1]
    with torch.inference_mode():
        expected = net.build(config, tensors)(x_BCHW)
    values = {net.structure.graph.inputs[0]: x_BCHW.numpy()}
    for part in range(2):
        session = onnxruntime.InferenceSession(tmp_path / f"{part}.onnx", providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_outputs()]
        read = {one.name: values[one.name] for one in session.get_inputs()}
        values |= dict(zip(names, session.run(None, read), strict=True))
    assert difference(values[net.placed_operators(config).outputs[0]], expected) <= TOLERANCE


@pytest.mark.parametrize("net", ["convolutions"], indirect=True)
def test_chains_and_files_with_statistics_of_common_weights_align_in_one_subnet_alone(
    net: SuperNet, tmp_path: Path
) -> None:
    config, largest = net.min_config, net.max_config
    tensors, exits = own_tensors(net, largest), net.exits(largest)
    subnets = {"aligned": (largest, tensors), "plain": (config, None)}
    net.export_together(subnets, tmp_path, {"aligned": exits}, observed_images=2)
    x_BCHW = unusual(net, largest, 9)
    with torch.inference_mode():
        segments = net.segments(largest, tensors, exits)
        first, expected = segments[0]({segments[0].inputs[0]: x_BCHW}), net.build(largest, tensors)(x_BCHW)
        plain = net.build(config)(unusual(net, config, 9))
    assert difference(answers(tmp_path / "aligned.onnx", x_BCHW), expected) <= TOLERANCE
    assert difference(answers(tmp_path / "aligned.0.onnx", x_BCHW), first) <= TOLERANCE
    assert difference(answers(tmp_path / "plain.onnx", unusual(net, config, 9)), plain) <= TOLERANCE
    names = statistics_names(onnx.load(tmp_path / "aligned.onnx", load_external_data=False))
    mean, variance = (np.concatenate([tensors[name].numpy() for name in each]) for each in zip(*names, strict=True))
    given = {"mean": mean, "variance": variance, "share": np.array(0.0, np.float32)}
    assert difference(answers(tmp_path / "aligned.statistics.onnx", x_BCHW, **given), expected) <= TOLERANCE
    net.export_answers(largest, tmp_path / "answers.onnx", statistics=tensors, exits=exits, fold_batch_norm=True)
    assert difference(answers(tmp_path / "answers.onnx", x_BCHW), first) <= TOLERANCE
