"""The wheel of the run time for devices, built from this repository."""

import subprocess
import sys
from pathlib import Path

import adaptive_runtime
from tasks.base.errors import UserError

PROJECT = Path(adaptive_runtime.__path__[0]).parent / "device"
GIVEN = "or give one: deploy.wheel=FILE.whl (make device-wheel)"


def build_wheel(folder: Path, project: Path = PROJECT) -> Path:
    """Build `autotailor_runtime-VERSION-py3-none-any.whl` into `folder`; the same sources give the same bytes.

    project: folder of the wheel's pyproject.toml. UserError: the folder or hatchling is missing, or hatchling fails.
    """
    where = "wheel of the run time"
    if not (project / "pyproject.toml").is_file():
        raise UserError(where, f"'{project}' is not there", next_step=f"run in the repository, {GIVEN}")
    command = [sys.executable, "-P", "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.resolve())]
    done = subprocess.run(
        command,
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    said = done.stdout.strip().splitlines() or ["no reason"]
    if done.returncode:
        hint = "pip install hatchling" if "No module named hatchling" in said[-1] else "mend the sources"
        raise UserError(where, f"cannot be built ({said[-1]})", next_step=f"{hint}, {GIVEN}")
    return folder / Path(said[-1]).name
