"""`eval "$(python -m importing)"`: commands of Prefect and MLflow that follow in this shell report nothing either."""

import shlex

from importing import SETTINGS

if __name__ == "__main__":
    print("export", *(f"{name}={shlex.quote(value)}" for name, value in SETTINGS.items()))
