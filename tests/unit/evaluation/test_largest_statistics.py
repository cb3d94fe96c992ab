"""The largest SubNet is the network: evaluation takes its stored BatchNorm statistics, not those of other images."""

from pathlib import Path

import torch

import tailor_ir
from tasks.base.progress import Silent
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData, accuracies, accuracy, statistics_of
from tests.unit.ir import small_networks as small


def unlike_its_data() -> tuple[tailor_ir.SuperNet, EvaluationData]:
    """A SuperNet whose statistics are those of other images than the data has."""
    torch.manual_seed(0)
    model = small.Eca(channels=3)
    statistics = model.norm.state_dict()  # shared with the module
    statistics["running_mean"].normal_()
    statistics["running_var"].uniform_(0.5, 2)
    splits = load_splits(DataSettings(kind="digits"))
    images = EvaluationData(splits["validation"], splits["train"], recalibration_images=32, batch_size=32, limit=64)
    return tailor_ir.compile(model.eval(), torch.zeros(1, 3, 32, 32)), images


def test_the_largest_subnet_is_evaluated_with_the_statistics_that_the_network_has(tmp_path: Path) -> None:
    net, images = unlike_its_data()
    stored = {name: net.elastic.tensor(name).clone() for name in net.structure.graph.statistics}
    assert all(torch.equal(stored[name], tensor) for name, tensor in statistics_of(net, net.max_config, images).items())
    anew = net.recalibrate(net.max_config, images.calibration(net.input_size(net.max_config)))
    assert not any(torch.equal(stored[name], tensor) for name, tensor in anew.items())
    own = statistics_of(net, net.min_config, images)
    assert not any(torch.equal(stored[name][: len(tensor)], tensor) for name, tensor in own.items())
    one, together = (
        accuracy(net, net.max_config, images),
        accuracies(net, [net.max_config], images, tmp_path / "a", Silent()),
    )
    assert together == [one]
    net.set_statistics(anew)
    assert accuracy(net, net.max_config, images).loss != one.loss
