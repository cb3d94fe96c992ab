"""Check of the folder in which a worker runs flows, when deployments are registered: a step of `prefect.yaml`."""

import sys
from pathlib import Path

VARIABLE = "AUTOTAILOR_DIR"
FLOWS = "flows/operations/deployments/deployed.py"
BAD_INPUT = 2


def check_folder(directory: str = "") -> dict[str, str]:
    """End Prefect's command with one line if deployments could not run: the variable is missing or names a wrong folder.

    directory: as in `prefect.yaml`; "{{ … }}" or empty if the variable is not set. A folder that does not exist on this machine
    may exist on the worker's.
    """
    if fault := fault_of(directory):
        print(f"autotailor: {VARIABLE}: {fault}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    return {"directory": directory}


def fault_of(directory: str) -> str | None:
    """The problem with the folder, and its remedy; None if there is no problem."""
    if not directory or "{{" in directory:
        return f"is not set; set it to the repository's folder, as export {VARIABLE}=$PWD there"
    folder = Path(directory)
    if not folder.is_absolute():
        return f"got '{directory}'; allowed: a whole path, since workers start elsewhere"
    if folder.exists() and not (folder / FLOWS).is_file():
        return f"'{directory}' has no {FLOWS}; allowed: the repository's folder"
    return None
