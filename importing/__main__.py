"""`eval "$(python -m importing)"`: later commands of Prefect and MLflow in this shell send no telemetry either."""

import shlex

from importing import SETTINGS

if __name__ == "__main__":
    print("export", *(f"{name}={shlex.quote(value)}" for name, value in SETTINGS.items()))
