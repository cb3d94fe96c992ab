"""The folder in which a worker runs flows, looked at when deployments are registered: a step of `prefect.yaml`."""

import sys
from pathlib import Path

VARIABLE = "AUTOTAILOR_DIR"
FLOWS = "flows/deployments/deployed.py"
BAD_INPUT = 2


def check_folder(directory: str = "") -> dict[str, str]:
    """Ends Prefect's command with one line where deployments could not run: the variable is not set, or names something else.

    directory: as `prefect.yaml` has it; "{{ … }}" or nothing where the variable is not set. A folder that is not on this
    machine may be on that of the worker.
    """
    if fault := fault_of(directory):
        print(f"autotailor: {VARIABLE}: {fault}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    return {"directory": directory}


def fault_of(directory: str) -> str | None:
    """What is wrong with it, and what to do; None: nothing."""
    if not directory or "{{" in directory:
        return f"is not set; set it to the repository's folder, as export {VARIABLE}=$PWD there"
    folder = Path(directory)
    if not folder.is_absolute():
        return f"got '{directory}'; allowed: a whole path, since workers start elsewhere"
    if folder.exists() and not (folder / FLOWS).is_file():
        return f"'{directory}' has no {FLOWS}; allowed: the repository's folder"
    return None
