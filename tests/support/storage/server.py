"""A real server of the S3 protocol for tests, and the machines that share it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fsspec.core import url_to_fs

from tests.support.storage.s3_server import FULL, REQUESTS

BUCKET = "s3://fleet"
SECRET = "only-for-tests"


@dataclass(frozen=True)
class S3:
    """A server with a bucket; clients find it by the environment."""

    folder: Path
    url: str = BUCKET

    def written(self) -> list[str]:
        """The objects that were written, in order, each as often as it was."""
        lines = (self.folder / REQUESTS).read_text().splitlines()
        return [line.removeprefix("PUT /fleet/") for line in lines if line.startswith("PUT /fleet/")]

    @contextmanager
    def full(self) -> Iterator[None]:
        """Nothing can be written while the block runs."""
        file = self.folder / FULL
        file.touch()
        try:
            yield
        finally:
            file.unlink()


@contextmanager
def served(folder: Path) -> Iterator[S3]:
    """A server while the block runs; the environment of this process, and of those that it starts, names it."""
    command = [sys.executable, "-m", "tests.support.storage.s3_server", str(folder)]
    with (
        (folder / "log.txt").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
        pytest.MonkeyPatch.context() as patch,
    ):
        assert process.stdout is not None
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{int(process.stdout.readline())}")
        patch.setenv("AWS_ACCESS_KEY_ID", "tests")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        system, root = url_to_fs(BUCKET, skip_instance_cache=True)
        system.mkdir(root)
        yield S3(folder)
        process.kill()
