"""BatchNorms that an exporter folded into convolutions are put back: nothing changes, and SubNets are recalibrated."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import tailor_ir
from tailor_ir.rewriting.opened_norms import EPSILON, ChannelMoments
from tailor_ir.subnets.plans import importance
from tailor_ir.supernet.reading import Batching
from tests.support.ir.networks import perturb

SIDE = 16
NORM = "BatchNormalization"
WIDE = {"*": "auto"}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def layer(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


class Residual(nn.Module):
    def __init__(self, body: Sequence[nn.Module], after: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.after = nn.Sequential(*body), after or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.after(x + self.body(x))
        return answer


class Gate(nn.Module):
    """Squeeze-and-excitation, whose convolutions have biases and no norm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.expand(torch.relu(self.reduce(x.mean((2, 3), keepdim=True)))))


def classifier(*body: nn.Module, channels: int = 16) -> nn.Module:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def plain() -> nn.Module:
    return classifier(
        *layer(3, 16, stride=2), nn.ReLU(), *layer(16, 32), nn.ReLU(), *layer(32, 16, stride=2), nn.ReLU()
    )


def residual() -> nn.Module:
    blocks = (Residual([*layer(16, 32), nn.ReLU(), *layer(32, 16)], nn.ReLU()) for _ in range(3))
    return classifier(*layer(3, 16, stride=2), nn.ReLU(), *blocks)


def depthwise(*gate: nn.Module) -> nn.Module:
    def body() -> list[nn.Module]:
        return [*layer(16, 32, 1), nn.SiLU(), *layer(32, 32, groups=32), nn.SiLU(), *gate, *layer(32, 16, 1)]

    return classifier(*layer(3, 16, stride=2), nn.SiLU(), Residual(body()), Residual(body()))


def gated() -> nn.Module:
    return depthwise(Gate(32))


def with_biases() -> nn.Module:
    def body() -> list[nn.Module]:
        first, last = nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 16, 1)
        return [first, nn.BatchNorm2d(32), nn.ReLU(), last, nn.BatchNorm2d(16)]

    return classifier(*layer(3, 16), nn.ReLU(), Residual(body(), nn.ReLU()), Residual(body(), nn.ReLU()))


def dense() -> nn.Module:
    """A head whose last layer has no norm."""
    return nn.Sequential(*layer(3, 16), nn.ReLU(), *layer(16, 32), nn.ReLU(), nn.Conv2d(32, 5, 1), nn.Sigmoid())


def dead() -> nn.Module:
    """Channels that are zero, constant, or next to constant."""
    found = perturb(residual())
    with torch.no_grad():
        for module in found.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight[::4] = 0
                module.weight[1::8] = 1e-6
            if isinstance(module, nn.Conv2d):
                module.weight[2::8] = 0
    return found


NETWORKS = (plain, residual, depthwise, gated, with_biases, dense, dead)
Make = Callable[[], nn.Module]


def made(make: Make) -> nn.Module:
    """A network whose BatchNorms have the statistics of the samples."""
    torch.manual_seed(0)
    model = make() if make is dead else perturb(make())
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    model.train()
    with torch.no_grad():
        for x in batches():
            model(x)
    return model.eval()


def exported(model: nn.Module, dynamo: bool = False, **options: Any) -> onnx.ModelProto:
    x = torch.zeros(1, 3, SIDE, SIDE)
    if not dynamo:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "net.onnx"
            torch.onnx.export(model, (x,), file, dynamo=False, opset_version=17, **options)
            return onnx.load(file)
    program = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
    assert program is not None
    return program.model_proto


def anonymous(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with names that tell nothing."""
    graph = model.graph
    kept = {one.name for one in (*graph.input, *graph.output)}
    values = [*(one.name for one in graph.initializer), *(name for node in graph.node for name in node.output)]
    names = {name: f"value_{number}" for number, name in enumerate(values) if name not in kept}
    for tensor in graph.initializer:
        tensor.name = names[tensor.name]
    for number, node in enumerate(graph.node):
        node.name = f"node_{number}"
        for side in (node.input, node.output):
            side[:] = [names.get(name, name) for name in side]
    del graph.value_info[:]
    return model


def batches(count: int = 2, samples: int = 32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(samples, 3, SIDE, SIDE, generator=generator) for _ in range(count)]


def norms(net: tailor_ir.SuperNet) -> int:
    return sum(node.op == NORM for node in net.structure.graph.nodes)


def norms_of(model: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())


FORMS = {
    "legacy": exported,
    "dynamo": lambda model: exported(model, dynamo=True),
    "anonymous": lambda model: anonymous(exported(model)),
}


@pytest.mark.long_cases(*[f"{make.__name__}-dynamo" for make in NETWORKS if make not in (plain, depthwise)])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", NETWORKS)
def test_as_many_are_put_back_as_were_folded_and_the_largest_subnet_is_the_file(make: Make, form: str) -> None:
    model = made(make)
    file = FORMS[form](model)
    assert all(node.op_type != NORM for node in file.graph.node)
    net = tailor_ir.compile(file, calibration=batches())
    count = norms_of(model)
    assert norms(net) == count
    assert sum(str(count) in remark and "behind" in remark for remark in net.remarks) == 1
    net.check_against()
    net.check_forms()
    x = batches()[0]
    with torch.no_grad():
        wanted, found = model(x), net.elastic.eval()(x)
    assert torch.allclose(wanted, found, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize("make", NETWORKS)
def test_recalibrated_subnets_answer_as_those_of_the_network_that_was_not_folded(make: Make) -> None:
    model = made(make)
    example = torch.zeros(1, 3, SIDE, SIDE)
    unfolded = tailor_ir.compile(model, example, WIDE)
    opened = tailor_ir.compile(exported(model), example, WIDE, calibration=batches())
    assert [(v.name, v.choices) for v in opened.space.variables] == [
        (v.name, v.choices) for v in unfolded.space.variables
    ]
    folded = tailor_ir.compile(exported(model), example, WIDE)
    rng = np.random.default_rng(0)
    for config in [opened.min_config, *(opened.space.sample(rng) for _ in range(4))]:
        size = opened.input_size(config)
        given = [nn.functional.interpolate(x, size, mode="area") for x in batches()]
        answers = []
        for net in (unfolded, opened, folded):
            net.elastic.activate(config, net.recalibrate(config, given))
            with torch.no_grad():
                answers.append(net.elastic.eval()(given[0]))
        wanted, found, left = answers
        # the two differ by the ε of the network's own norms, which is not known
        assert (wanted - found).square().mean() < (0.02 * wanted.std()) ** 2, config
        if config == opened.min_config:
            assert (wanted - left).square().mean() > (0.2 * wanted.std()) ** 2


@pytest.mark.parametrize("make", NETWORKS)
def test_channels_are_as_important_as_in_the_network_that_was_not_folded(make: Make) -> None:
    model = made(make)
    example = torch.zeros(1, 3, SIDE, SIDE)
    opened = tailor_ir.compile(exported(model), example, WIDE, calibration=batches())
    for module in model.modules():  # a scale of weights that the norm cancels
        if isinstance(module, nn.Sequential):
            for layer, norm in pairwise(module):
                if isinstance(layer, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and layer.bias is None:
                    scale = 1 + torch.arange(len(norm.weight)) % 5
                    layer.weight.data *= scale.reshape(-1, 1, 1, 1)
                    assert norm.running_mean is not None
                    assert norm.running_var is not None
                    norm.running_mean *= scale
                    norm.running_var *= scale**2
    networks = (tailor_ir.compile(model, example, WIDE), opened)
    found = [
        [importance(s.graph, net.elastic.tensors(), s.axis_map, group) for group in s.axis_map.groups]
        for net in networks
        for s in [net.structure]
    ]
    for own, other in zip(*(sorted(each, key=lambda one: one.sum()) for each in found), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-2, atol=1e-3 * own.max())


@pytest.mark.parametrize("make", NETWORKS)
def test_an_export_has_them_folded_again(make: Make, tmp_path: Path) -> None:
    model = made(make)
    example = torch.zeros(1, 3, SIDE, SIDE)
    unfolded = tailor_ir.compile(model, example, WIDE)
    opened = tailor_ir.compile(exported(model), example, WIDE, calibration=batches())
    for config in (opened.max_config, opened.min_config):
        counts = []
        for net in (unfolded, opened):
            net.export(config, tmp_path / "net.onnx", fold_batch_norm=True)
            nodes = onnx.load(tmp_path / "net.onnx").graph.node
            assert all(node.op_type != NORM for node in nodes)
            counts.append(len(nodes))
        assert counts[0] == counts[1]
        assert opened.macs(config) == unfolded.macs(config)
    assert opened.parameters(opened.max_config) == unfolded.parameters(unfolded.max_config)


def test_recalibrating_the_largest_subnet_with_the_same_samples_changes_nothing() -> None:
    net = tailor_ir.compile(exported(made(residual)), calibration=(batch := batches(1)))
    for name, tensor in net.recalibrate(net.max_config, batch).items():
        assert torch.allclose(tensor, net.elastic.tensor(name), rtol=1e-3, atol=1e-5), name


def test_dead_channels_are_finite_and_stay_dead() -> None:
    net = tailor_ir.compile(exported(made(dead)), calibration=batches())
    tensors = net.elastic.tensors()
    assert all(tensor.isfinite().all() for tensor in tensors.values() if tensor.is_floating_point())
    scales = [tensor for name, tensor in tensors.items() if name.endswith("batch_norm.weight")]
    assert scales
    assert all(tensor.min() < 2 * EPSILON**0.5 for tensor in scales)


@pytest.mark.parametrize("norm", [nn.GroupNorm(4, 16), nn.InstanceNorm2d(16, affine=True)])
def test_networks_with_other_norms_are_left_as_they_are(norm: nn.Module) -> None:
    model = classifier(nn.Conv2d(3, 16, 3), norm, nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU()).eval()
    net = tailor_ir.compile(anonymous(exported(model)), calibration=batches())
    assert norms(net) == 0


def test_a_file_that_kept_its_batch_norms_is_left_as_it_is() -> None:
    preserved = torch.onnx.TrainingMode.PRESERVE
    model = exported(made(residual), training=preserved, do_constant_folding=False)
    plain, given = (tailor_ir.compile(model, calibration=each) for each in ((), batches()))
    assert plain.structure.graph == given.structure.graph
    assert given.remarks == plain.remarks


def test_without_samples_nothing_is_put_back_and_the_remark_advises() -> None:
    net = tailor_ir.compile(exported(made(residual)))
    assert norms(net) == 0
    assert any("BatchNorm was folded into 7 of 7 convolutions" in remark for remark in net.remarks)


def test_a_convolution_before_a_softmax_is_left_out() -> None:
    class Attended(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.score, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 1, 1), nn.Linear(8, 10)
            self.second = nn.Conv2d(8, 8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.second(torch.relu(self.first(x))))
            shares = self.score(x).flatten(2).softmax(-1)
            answer: torch.Tensor = self.last((x.flatten(2) * shares).sum(-1))
            return answer

    net = tailor_ir.compile(anonymous(exported(perturb(Attended()))), calibration=batches())
    assert norms(net) == 2


def test_samples_of_another_size_are_refused_in_one_line() -> None:
    model = exported(made(plain))
    with pytest.raises(tailor_ir.InputError, match=r"calibration: input '.*' has sizes \[3, 8, 8\]; allowed: \[3, 16"):
        tailor_ir.compile(model, calibration=[torch.zeros(4, 3, 8, 8)])
    with pytest.raises(tailor_ir.InputError, match=r"calibration: 1 sample; allowed: 2 or more"):
        tailor_ir.compile(model, calibration=[torch.zeros(1, 3, SIDE, SIDE)])


def test_batches_of_one_sample_are_taken(tmp_path: Path) -> None:
    """Also by a file whose batch is one, and a SuperNet that is saved keeps what was put back."""
    file = exported(made(gated))
    several = [x for batch in batches(1, 16) for x in batch.split(1)]
    nets = [tailor_ir.compile(file, calibration=each) for each in (batches(1, 16), several)]
    for name, tensor in nets[0].elastic.tensors().items():
        assert torch.allclose(tensor, nets[1].elastic.tensor(name), rtol=1e-3, atol=1e-5), name
    nets[0].save(tmp_path / "net")
    again = tailor_ir.load(tmp_path / "net")
    assert norms(again) == norms(nets[0])
    reference = tailor_ir.Reference.of_file(
        file,
        lambda rng, batch: (rng.standard_normal((batch, 3, SIDE, SIDE), dtype=np.float32),),
        Batching.of(again.structure),
        {},
    )
    again.check_against(reference)


@pytest.mark.parametrize("split", [1, 3, 16])
def test_moments_are_those_of_all_samples_together(split: int) -> None:
    values = torch.randn(16, 5, 4, 3, generator=torch.Generator().manual_seed(0)) * 3 + 100
    moments = ChannelMoments()
    for each in values.split(split):
        moments.add(each)
    rows = values.double().transpose(0, 1).flatten(1)
    assert torch.allclose(moments.mean, rows.mean(1), rtol=1e-6)
    assert torch.allclose(moments.variance, rows.var(1), rtol=1e-4)
