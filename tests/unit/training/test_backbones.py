"""A part of a network as a classifier: its modules are called as in the whole, and what does not fit is one line."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import nn

from tasks.base.errors import UserError
from tasks.data.samples import image_form
from tasks.evaluation.models import ModelSettings, create, load_part
from tests.support.boxes import small_detectors

NAME = f"{Path(small_detectors.__file__)}:retinanet"
SIDE, CLASSES = 32, 5


def made(backbone: str | None) -> nn.Module:
    settings = ModelSettings(kind="callable", name=NAME, backbone=backbone)
    if backbone is None:
        return small_detectors.retinanet(CLASSES, 3)
    module = create(settings, CLASSES, image_form(3, SIDE))
    assert isinstance(module, nn.Module)
    return module


@pytest.mark.parametrize("backbone", ["backbone", "backbone.stem"])
def test_a_part_classifies_images_with_the_names_of_the_whole(backbone: str) -> None:
    module = made(backbone).eval()
    assert module(torch.zeros(2, 3, SIDE, SIDE)).shape == (2, CLASSES)
    own, whole = module.state_dict(), made(None).state_dict()
    part = {name for name in whole if name.startswith(f"{backbone}.")}
    assert own.keys() - part == {"classifier.weight", "classifier.bias"}
    assert part <= own.keys()


def test_a_network_takes_the_weights_of_its_part_and_no_others(tmp_path: Path) -> None:
    source, whole = made("backbone"), made(None)
    before = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    load_part(whole, tmp_path / "weights.safetensors", "backbone")
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, source.state_dict()[name] if name.startswith("backbone.") else before[name])


def test_a_part_that_lacks_a_tensor_or_has_another_shape_is_refused(tmp_path: Path) -> None:
    state = made("backbone").state_dict()
    first = next(name for name in state if name.startswith("backbone."))
    file = tmp_path / "weights.safetensors"
    for given, line in (
        ({name: tensor for name, tensor in state.items() if name != first}, "and None in"),
        ({**state, first: state[first][:1]}, rf"'{first}' has shape \(32, 3, 3, 3\) in the network and \(1, 3, 3, 3\)"),
    ):
        save_file(given, file)
        with pytest.raises(UserError, match=line):
            load_part(made(None), file, "backbone")


@pytest.mark.parametrize(
    ("backbone", "line"),
    [("body", "has no part 'body'; allowed: backbone, head"), ("head", "part 'head': cannot run on images alone")],
)
def test_a_part_that_is_no_backbone_is_told_in_one_line(backbone: str, line: str) -> None:
    with pytest.raises(UserError, match=line) as refused:
        made(backbone)
    assert "\n" not in str(refused.value)


def test_a_network_of_timm_has_no_part_by_name() -> None:
    with pytest.raises(ValidationError, match=r"model\.backbone=stem is for model.kind=callable, not timm"):
        ModelSettings(backbone="stem")
