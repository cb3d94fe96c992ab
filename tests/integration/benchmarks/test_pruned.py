"""Networks that another library prunes become files for `baselines.files`."""

from pathlib import Path

import onnx
import pytest
import torch
from safetensors.torch import save_model
from torch import distributed, nn

from benchmarks.pruned import alone, pruned, pruned_files, train_settings
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tasks.data.samples import image_form
from tasks.evaluation.models import create

WORDS = ["model.name=test_resnet", "finetune.epochs=1", "finetune.processes=2", "finetune.learning_rate=0.002"]


@pytest.fixture
def config() -> RunConfig:
    return validate(RunConfig, compose_config("config", WORDS))


def test_pruned_networks_train_as_the_supernet_in_one_process(config: RunConfig) -> None:
    settings = train_settings(config)
    assert (settings.processes, settings.epochs, settings.learning_rate) == (1, 1, 0.002)
    assert settings.batch_size == config.finetune.batch_size


def test_a_process_group_of_one_ends_with_its_block() -> None:
    with alone():
        assert distributed.get_world_size() == 1
        total = torch.ones(1)
        distributed.all_reduce(total)
        assert total == 1
    assert not distributed.is_initialized()


def test_files_that_are_there_are_not_made_again(config: RunConfig, tmp_path: Path) -> None:
    network = create(config.model, 10, image_form(3, 32))
    assert isinstance(network, nn.Module)
    save_model(network, str(tmp_path / "weights.safetensors"))
    made = [tmp_path / "pruned-35.onnx", tmp_path / "pruned-60.onnx"]
    for file in made:
        file.write_bytes(b"as it was")
    assert pruned_files(config, tmp_path / "weights.safetensors", tmp_path, (0.35, 0.6)) == made
    assert {file.read_bytes() for file in made} == {b"as it was"}


def test_a_share_of_the_channels_goes_and_the_file_is_of_the_rest(config: RunConfig, tmp_path: Path) -> None:
    network = create(config.model, 10, image_form(3, 32))
    assert isinstance(network, nn.Module)
    save_model(network, str(tmp_path / "weights.safetensors"))
    small = pruned(network, 0.5, 32, 3)
    assert sum(p.numel() for p in small.parameters()) < 0.6 * sum(p.numel() for p in network.parameters())
    (file,) = pruned_files(config, tmp_path / "weights.safetensors", tmp_path, (0.5,))
    assert file.name == "pruned-50.onnx"
    assert onnx.load(file).graph.output[0].type.tensor_type.shape.dim[1].dim_value == 10
