"""The environment that the run time is installed into."""

import os
import shutil
import sys
import zipfile

from tasks.deploy.device_side.programs import StepRefused, program, write

MARK = "installed"


def is_installed(target: str) -> bool:
    """Whether an environment is complete."""
    return os.path.exists(os.path.join(target, MARK))


def install(target: str, packages: str, wheel: str, extra: str, kind: str, offline: bool) -> None:
    """Make the environment in folder `target`, unless it is complete, from the wheel in folder `packages`.

    kind: "unpack" only unpacks the wheel's modules. offline: all other wheels come from `packages`, too.
    """
    if is_installed(target):
        return
    shutil.rmtree(target, ignore_errors=True)
    package = os.path.join(packages, wheel)
    if kind == "unpack":
        with zipfile.ZipFile(package) as archive:
            archive.extractall(target)
    else:
        _make(target)
        _fill(target, f"{package}[{extra}]", packages if offline else None)
    write(os.path.join(target, MARK), "")


def _make(target: str) -> None:
    try:
        program([sys.executable, "-m", "venv", target])
    except StepRefused as refused:
        hint = "install it there (Debian: apt-get install python3-venv), or deploy.install=unpack"
        raise StepRefused(f"'python3 -m venv' fails ({refused}); {hint}") from refused


def _fill(target: str, package: str, wheels: str | None) -> None:
    words = [os.path.join(target, "bin", "python"), "-m", "pip", "install", "--quiet", "--no-compile", "--no-input"]
    words += ["--disable-pip-version-check"]
    words += ["--no-index", "--find-links", wheels] if wheels is not None else []
    try:
        program([*words, package])
    except StepRefused as refused:
        hint = "deploy.wheels=FOLDER installs without a network"
        if wheels is not None:
            hint = "deploy.wheels needs the wheels of all dependencies, for the Python and the processor there"
        raise StepRefused(f"pip fails ({refused}); {hint}") from refused
