"""The wheel for devices: what is in it, what it asks for, and that it runs without the repository."""

import ast
import re
import site
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import distributions, files
from itertools import chain
from pathlib import Path

import pytest
import torch

import tailor_ir
from tasks.base.errors import UserError
from tasks.deploy.deployment import build_wheel
from tests.support.docs.documents import ROOT
from tests.support.ir.networks import small_net
from tests.support.runtime.bundled import write_plain_bundle

ROOMS = {"adaptive_runtime", "profiling_agents", "importing", "solvers"}
MOST_DEPENDENCIES = 6
MOST_OF_AN_EXTRA = 3
RUNTIMES = {"onnxruntime", "ncnn"}
EXTRAS = RUNTIMES | {"adapt", "telemetry"}
GRADIENTS, OF_GRADIENTS = "adaptive_runtime/weights/gradients.py", {"torch", "onnx"}
"""The one module with libraries of the extra `adapt`, and these."""
FOREIGN = (
    "torch",
    "onnx",
    "scipy",
    "prefect",
    "mlflow",
    "hydra",
    "pandas",
    "timm",
    "tailor_ir",
    "tasks",
    "flows",
    "conf",
)
ALONE = """
import runpy, sys

class Hiding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {foreign!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Hiding)
sys.path[:0] = [{unpacked!r}]
sys.path += {libraries!r}
sys.argv = ["autotailor-runtime", "check", {bundle!r}]
runpy.run_module("adaptive_runtime", run_name="__main__")
"""
"""Python's -I and -S keep out the working folder, PYTHONPATH and the .pth files by which the repository is installed."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def imported(unpacked: Path, without: str | None = None) -> set[str]:
    """All modules that the wheel's modules import, also inside functions. without: a module, or a room, that is left out."""
    found = set()
    for path in unpacked.rglob("*.py"):
        if without is not None and path.is_relative_to(unpacked / without):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                found.add(str(node.module))
    return found


def modules_of(package: str) -> set[str]:
    """All modules of an installed package; of a name that it shares with other packages, as `opentelemetry`, its own alone."""
    places = [file.with_name(file.name.split(".")[0]) for file in files(package) or () if file.suffix in (".py", ".so")]
    return {".".join(place.parts).removesuffix(".__init__") for place in places}


def required(unpacked: Path) -> dict[str, dict[str, set[str]]]:
    """What the wheel depends on, by extra: names and bounds. Under "": whatever is installed."""
    (own,) = distributions(path=[str(unpacked)])
    found: dict[str, dict[str, set[str]]] = {}
    for line in own.requires or ():
        needed, _, condition = line.partition(";")
        extra = re.search(r"extra\s*==\s*['\"](\w+)['\"]", condition)
        found.setdefault(extra[1] if extra else "", {}).update(bounds([needed]))
    return found


def bounds(lines: Iterable[str]) -> dict[str, set[str]]:
    """Of requirements, by the names of packages."""
    return {re.split(r"[<>=!~ \[]", line)[0]: set(re.findall(r"[<>=!]+[^,<>=! ]+", line)) for line in lines}


def test_the_wheel_has_the_run_time_and_what_that_imports_of_the_house(unpacked: Path) -> None:
    files = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    own = [path for path in (ROOT / "adaptive_runtime").rglob("*") if path.is_file()]
    assert files >= {str(path.relative_to(ROOT)) for path in own if "__pycache__" not in path.parts}
    assert {name.split("/")[0] for name in files if ".dist-info/" not in name} <= ROOMS
    assert not [name for name in files if name.startswith(("profiling_agents/client", "profiling_agents/serving"))]
    for module in imported(unpacked):
        if module.split(".")[0] in ROOMS:
            place = module.replace(".", "/")
            assert {f"{place}.py", f"{place}/__init__.py"} & files, module


def test_the_same_sources_give_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    assert build_wheel(tmp_path).read_bytes() == wheel.read_bytes()


@pytest.mark.long
def test_everything_that_its_modules_import_is_a_dependency_or_an_extra(unpacked: Path) -> None:
    own = ROOMS | set(sys.stdlib_module_names)
    foreign = {name for name in imported(unpacked) if name.split(".")[0] not in own}
    declared = {package for extra in required(unpacked).values() for package in extra}
    assert foreign <= set().union(*map(modules_of, declared))
    every, others = (
        {name.split(".")[0] for name in imported(unpacked, without)} - own for without in (None, GRADIENTS)
    )
    assert {"numpy", "pydantic", "opentelemetry"} | RUNTIMES <= others
    assert not others.intersection(FOREIGN)
    assert every.intersection(FOREIGN) == OF_GRADIENTS


def test_it_depends_on_few_packages_within_the_bounds_of_the_project(unpacked: Path) -> None:
    found = required(unpacked)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    known = bounds([*project["dependencies"], *chain.from_iterable(extras.values())])
    assert len(found[""]) <= MOST_DEPENDENCIES
    for extra, packages in found.items():
        assert extra == "" or len(packages) <= MOST_OF_AN_EXTRA
        assert packages == {name: known[name] for name in packages}
    assert found["telemetry"] == bounds(extras["telemetry"])
    (own,) = distributions(path=[str(unpacked)])
    assert own.version == project["version"]
    assert set(own.metadata.get_all("Provides-Extra") or ()) == EXTRAS == set(found) - {""}


@pytest.mark.long
def test_an_unpacked_wheel_checks_a_bundle_without_the_repository(unpacked: Path, tmp_path: Path) -> None:
    net = tailor_ir.compile(small_net(), torch.randn(1, 3, 16, 16), {"*.width_mult": [0.5, 1]})
    write_plain_bundle(net, [net.max_config, net.min_config], tmp_path / "bundle", samples=2)
    text = ALONE.format(
        foreign=FOREIGN, unpacked=str(unpacked), libraries=site.getsitepackages(), bundle=str(tmp_path / "bundle")
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        net.space.digest(net.max_config),
        net.space.digest(net.min_config),
    ]


def test_a_wheel_that_cannot_be_built_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not there; run in the repository, or give one: deploy\.wheel=FILE\.whl"):
        build_wheel(tmp_path, tmp_path / "device")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'a b'\nversion = '1'\n")
    with pytest.raises(
        UserError, match=r"^wheel of the run time: cannot be built \(.*\); mend the sources, or give one"
    ):
        build_wheel(tmp_path, tmp_path)
