"""What cannot be is told from a look at files and numbers, and every other command line passes."""

import socket
from pathlib import Path

import pytest

from flows.pipeline.tracking.addresses import address_of, check_usable
from tasks.base.errors import UserError


def test_an_mlflow_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"no database of SQLite at all")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for uri, line in (
        (f"http://127.0.0.1:{port}", "does not answer"),
        (f"sqlite:///{tmp_path}/no/mlflow.db", "its folder does not exist; make it"),
        (f"sqlite:///{tmp_path}/other", "file is not a database"),
    ):
        with pytest.raises(UserError, match=line):
            check_usable(address_of(uri))
    check_usable(address_of(f"sqlite:///{tmp_path}/mlflow.db"))
    check_usable(address_of("postgresql://user@nowhere/mlflow"))
    assert not (tmp_path / "mlflow.db").exists()
