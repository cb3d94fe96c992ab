"""Networks in packages of the user's whose names are those of packages of the house, or of libraries."""

import copy
import importlib
import json
import pickle
import sys
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path

import pytest
import torch
from torch import nn

from flows.pipeline.stages.spec import model_key
from tasks.base.errors import UserError
from tasks.data.samples import image_form
from tasks.evaluation.models import ModelSettings, create
from tests.support.finetune import own_code

project = own_code.project


def made(name: str) -> nn.Module:
    model = create(ModelSettings(kind="callable", name=name), 10, image_form(3, 8))
    assert isinstance(model, nn.Module)
    return model


@pytest.mark.parametrize("is_regular", [False, True])
@pytest.mark.parametrize("name", ["tasks.nets:make", "tasks.data:network", "tasks/nets.py:make"])
def test_packages_named_like_those_of_the_house_are_imported(name: str, is_regular: bool, project: Path) -> None:
    if is_regular:
        (project / "tasks" / "__init__.py").write_text("from tasks.base import conv\n")
    elif name.endswith(".py:make"):  # in no package
        file = project / "tasks" / "nets.py"
        file.write_text(file.read_text().replace("from .base", "from base").replace(" and conv is relative", ""))
    house = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ("tasks", "flows")}
    assert made(name).eval()(torch.zeros(1, 3, 8, 8)).shape == (1, 10)
    assert all(sys.modules[name] is module for name, module in house.items())


def test_a_class_of_such_a_package_can_be_copied_and_pickled(project: Path) -> None:
    model = made("tasks.nets:own")
    copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))  # noqa: S301 - its own
    assert type(copied) is type(model)


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (
            "by_name",
            r"raises ModuleNotFoundError \(No module named 'tasks\.own'\) at tasks/nets\.py:\d+; AutoTailor has a package "
            r"'tasks', too: import statements find yours, importlib\.import_module and pickle do not; rename yours$",
        ),
        (
            "wrong",
            r"raises ImportError \(cannot import name 'x' from 'tasks\.base' \(.*\)\) at tasks/nets\.py:\d+; mend",
        ),
        (
            "absent",
            r"cannot be imported \(module 'tasks\.nets' has no attribute 'absent'\); allowed: module:function, in",
        ),
    ],
)
def test_what_cannot_be_imported_is_one_line_with_the_names_of_the_user(
    function: str, line: str, project: Path
) -> None:
    with pytest.raises(UserError, match=rf"^model\.name 'tasks\.nets:{function}': {line}"):
        made(f"tasks.nets:{function}")


def test_a_file_that_is_not_there_is_named(project: Path) -> None:
    with pytest.raises(
        UserError, match=r"there is no file 'nets\.py'; allowed: FILE\.py:function, or module:function$"
    ):
        made("nets.py:make")


def test_the_working_folder_comes_before_installed_libraries(project: Path) -> None:
    (project / "scipy").mkdir()
    (project / "scipy" / "signal.py").write_text("from tasks.nets import make\n")
    library = importlib.import_module("scipy")
    assert isinstance(made("scipy.signal:make"), nn.Module)
    assert sys.modules["scipy"] is library


def test_networks_of_the_presets_are_those_of_the_house(project: Path) -> None:
    """Where the working folder has a folder `conf`, as here, with configs or with code of the user's."""
    for text in ("", "x = 1\n"):
        (project / "conf" / "own.py").write_text(text)
        settings = ModelSettings(kind="callable", name="conf.networks.once_for_all:proxyless")
        model = create(settings, 10, image_form(3, 32))
        assert type(model).__module__.startswith(("torch", "conf.networks"))


def test_source_of_such_packages_counts_in_keys(project: Path) -> None:
    settings = ModelSettings(kind="callable", name="tasks.nets:make")
    keys = [model_key(settings)]
    for name in ("tasks/base.py", "flows/late.py", "helpers.py"):
        (project / name).write_text((project / name).read_text() + "X = 1\n")
        keys.append(model_key(settings))
    assert len({json.dumps(key) for key in keys}) == 4


def test_import_hooks_of_libraries_do_not_come_between(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's libraries put loaders of their own before Python's."""

    class Loader(SourceFileLoader):
        pass

    monkeypatch.setattr(sys, "path_hooks", [FileFinder.path_hook((Loader, [".py"])), *sys.path_hooks])
    assert isinstance(made("tasks.nets:make"), nn.Module)
