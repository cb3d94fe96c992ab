"""The solvers need nothing but numpy and scipy, so that they run where there is no torch."""

import ast
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import scipy

import solvers

ROOM = Path(solvers.__path__[0])
MODULES = ["solvers", *(module.name for module in pkgutil.walk_packages([str(ROOM)], "solvers."))]
ROOMS = {"adaptive_runtime", "flows", "tasks", "tailor_ir", "profiling_agents", "importing"}
LISTED = "import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"


def first_names(module: str, *options: str, **variables: str) -> set[str]:
    """First names of all modules in a process that has imported one."""
    command = [sys.executable, *options, "-c", LISTED.format(module=module)]
    environment = os.environ | variables
    return set(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split())


def test_a_process_that_imports_all_solvers_has_no_torch_and_no_other_room() -> None:
    found = first_names(", ".join(MODULES))
    assert "solvers" in found
    assert not found & (ROOMS | {"torch", "onnx", "onnxruntime", "pydantic", "pymoo", "sklearn", "mlflow", "prefect"})


def test_the_solvers_run_where_numpy_and_scipy_alone_are_installed(tmp_path: Path) -> None:
    (tmp_path / "solvers").symlink_to(ROOM)
    for library in (numpy, scipy):
        folder = Path(library.__path__[0])
        for installed in (folder, folder.with_name(f"{folder.name}.libs")):
            if installed.is_dir():
                (tmp_path / installed.name).symlink_to(installed)
    used_later = "scipy.optimize"
    found = first_names(", ".join([*MODULES, used_later]), "-S", "-P", PYTHONPATH=str(tmp_path))
    assert {"solvers", "numpy", "scipy"} <= found


@pytest.mark.parametrize("module", MODULES)
def test_a_solver_names_no_other_library(module: str) -> None:
    """Also inside functions, and for types alone."""
    file = ROOM.joinpath(*module.split(".")[1:])
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    named = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            named |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            named.add(str(node.module).partition(".")[0])
    assert named - set(sys.stdlib_module_names) <= {"solvers", "numpy", "scipy"}
