"""Project folders that are not outputs (Prefect's home, device locks), and the settings of its libraries.

Call `prepare` before Prefect, MLflow or torch are first loaded: they read their settings from the environment.
"""

import logging
import os
import tempfile
from pathlib import Path

from tasks.base.errors import UserError


def cache_folder() -> Path:
    """The user's cache folder for this project, made if missing: $XDG_CACHE_HOME/autotailor or ~/.cache/autotailor."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "autotailor"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        reason = f"cannot be written ({error.strerror})"
        raise UserError(
            f"cache folder '{folder}'", reason, next_step="set XDG_CACHE_HOME to a folder you own"
        ) from error


def prefect_home() -> Path:
    """Prefect's home folder for this project."""
    return cache_folder() / "prefect"


def prepare(*, quiet: bool) -> None:
    """Set project defaults for Prefect, MLflow and torch; variables that the user has set are kept.

    quiet: Prefect logs nothing to the terminal (its server and UI still get the logs).
    """
    defaults = {
        "MPLCONFIGDIR": str(cache_folder() / "matplotlib"),
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        # on small networks, torch's threads wait longer for each other than they work; devices need cores as well
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2)),
    }
    if "PREFECT_HOME" not in os.environ and "PREFECT_API_URL" not in os.environ:
        defaults["PREFECT_HOME"] = str(prefect_home())
    if quiet:
        defaults["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
        defaults["PREFECT_SERVER_LOGGING_LEVEL"] = "CRITICAL"
        defaults["MLFLOW_LOGGING_LEVEL"] = "WARNING"
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # effective even if it was loaded before
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
