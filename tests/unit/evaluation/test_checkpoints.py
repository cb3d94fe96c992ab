"""Weights come from whatever training scripts save, and no code comes with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tasks.base.errors import UserError
from tasks.evaluation.models import ModelSettings, needs_training
from tasks.evaluation.models.creation import load_weights


def network(seed: int) -> nn.Module:
    """With BatchNorm and a tied weight."""
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4), nn.Linear(4, 4))
    made[3].weight = made[2].weight
    return made


State = dict[str, Any]
FORMS: dict[str, Callable[[State], Any]] = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}},
    "model": lambda state: {"model": state, "args": [1, 2]},
    "of DataParallel": lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
    "compiled, nested": lambda state: {
        "model": {"state_dict": {f"_orig_mod.{name}": one for name, one in state.items()}}
    },
    "without counters": lambda state: {name: one for name, one in state.items() if not name.endswith("tracked")},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", [".pt", ".pth", ""])
def test_weights_of_usual_files_are_taken(form: str, suffix: str, tmp_path: Path) -> None:
    given, own = network(1), network(2)
    file = tmp_path / f"weights{suffix}"
    torch.save(FORMS[form](given.state_dict()), file)
    load_weights(own, file)
    for name, tensor in given.state_dict().items():
        assert torch.equal(own.state_dict()[name], tensor)


def test_safetensors_files_are_taken_whatever_their_name_and_without_tied_twins(tmp_path: Path) -> None:
    given, own = network(1), network(2)
    state = {name: one.clone() for name, one in given.state_dict().items() if name != "3.weight"}
    save_file(state, tmp_path / "weights.pth")
    load_weights(own, tmp_path / "weights.pth")
    assert torch.equal(own.state_dict()["3.weight"], given.state_dict()["3.weight"])


class Evil:
    """Unpickling it would run a command."""

    def __reduce__(self) -> Any:
        return (print, ("code was run",))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"model": Evil()}, "cannot be read"),
        ([1, 2], "has no weights"),
        ({"state_dict": {"0.weight": torch.zeros(1)}}, "is missing"),
        ({**network(1).state_dict(), "0.weight": torch.zeros(4, 3, 5, 5)}, "'0.weight' has shape"),
        ({**network(1).state_dict(), "extra": torch.zeros(1)}, "'extra' is none of its tensors"),
    ],
)
def test_what_does_not_fit_is_one_line(
    content: Any, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = network(2)
    before = {name: one.clone() for name, one in own.state_dict().items()}
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(UserError, match=line) as raised:
        load_weights(own, tmp_path / "w.pt")
    assert "\n" not in str(raised.value)
    assert "code was run" not in capsys.readouterr().out
    assert all(torch.equal(own.state_dict()[name], one) for name, one in before.items())


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02junk", b"text"])
def test_damaged_files_are_one_line(content: bytes, tmp_path: Path) -> None:
    for name in ("w.pt", "w.safetensors"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match="cannot be read"):
            load_weights(network(1), tmp_path / name)


def test_a_trained_network_of_a_function_is_not_trained() -> None:
    assert not needs_training(ModelSettings(kind="callable", name="a:b", trained=True), 10)
    assert needs_training(ModelSettings(kind="callable", name="a:b"), 10)
