"""Databases of MLflow: made once, then copied, since MLflow takes seconds to make its tables."""

import os
import shutil
from pathlib import Path

from mlflow import MlflowClient

NAME = "mlflow.db"


def database_in(folder: Path) -> str:
    """The address of a folder's database, one without runs when there was none."""
    file = folder / NAME
    if not file.exists():
        shutil.copy(_empty(Path(os.environ["XDG_CACHE_HOME"])), file)
    return f"sqlite:///{file}"


def _empty(cache: Path) -> Path:
    file = cache / NAME
    if not file.exists():
        uri = f"sqlite:///{file}"
        MlflowClient(uri, uri).search_experiments()
    return file
