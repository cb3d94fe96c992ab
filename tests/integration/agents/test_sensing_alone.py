"""Sensing needs few libraries, so that it is of use on devices without the rest."""

import pkgutil
import subprocess
import sys

import pytest

from profiling_agents import sensing

MODULES = [f"profiling_agents.sensing.{module.name}" for module in pkgutil.iter_modules(sensing.__path__)]
NEEDED = {"pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "psutil"}
OWN_PACKAGES = {"lines", "messages", "sensing"}
ROOMS = {"importing", "profiling_agents"}
LISTED = """
import sys
before = set(sys.modules)
import {modules}
print(*sorted(name for name, module in sys.modules.items() if module and name not in before))
"""
"""What an installation imports into every process (`*.pth`) is no matter of the modules."""


def loaded(*modules: str) -> set[str]:
    """All modules that importing some brings into a process, without the standard library's."""
    done = subprocess.run(
        [sys.executable, "-c", LISTED.format(modules=", ".join(modules))], capture_output=True, text=True, check=True
    )
    standard = {*sys.stdlib_module_names, "__main__"}
    return {name for name in done.stdout.split() if name.partition(".")[0] not in standard}


@pytest.mark.parametrize("module", MODULES)
def test_a_process_that_imports_sensing_has_no_library_but_those_it_needs(module: str) -> None:
    first_names = {name.partition(".")[0] for name in loaded(module) if not name.startswith("_sysconfigdata")}
    assert "profiling_agents" in first_names
    assert first_names <= NEEDED | ROOMS


def test_sensing_imports_messages_and_lines_alone_of_its_own_room() -> None:
    own = {name.split(".")[1] for name in loaded(*MODULES) if name.startswith("profiling_agents.")}
    assert own == OWN_PACKAGES
