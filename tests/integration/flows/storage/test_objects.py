"""Objects at URLs: whole or not there, made once however many try, and one line where a storage does not do it."""

import json
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.storage import objects
from flows.storage.mirror import Mirror
from flows.storage.objects import described, open_objects
from tasks.base.errors import UserError
from tests.support.storage.server import S3, SECRET
from tests.support.threads import all_at_once

MAKERS = 8


def test_an_object_is_what_was_written_last_and_is_made_by_one_alone(url: str, tmp_path: Path) -> None:
    storage = open_objects(url)
    assert storage.read("a/b") is None
    assert storage.size("a/b") is None
    assert storage.names("a") == []
    assert storage.modified("a/b") == 0.0
    assert not storage.download("a/b", tmp_path / "none")

    made: list[int] = []

    def make(number: int, own: objects.Objects) -> None:
        if own.create("a/b", str(number).encode()):
            made.append(number)

    all_at_once(*(partial(make, number, open_objects(url)) for number in range(MAKERS)))
    assert len(made) == 1
    assert storage.read("a/b") == str(made[0]).encode()
    assert not storage.create("a/b", b"late")

    storage.write("a/b", b"longer")
    (tmp_path / "file").write_bytes(bytes(300_000))
    storage.upload(tmp_path / "file", "a/c/file")
    storage.upload(tmp_path / "file", "b")
    assert storage.names("a") == ["a/b", "a/c/file"]
    assert storage.sizes("a") == {"a/b": 6, "a/c/file": 300_000}
    assert storage.names("") == ["a/b", "a/c/file", "b"]
    assert (storage.read("a/b"), storage.size("a/b"), storage.size("a/c/file")) == (b"longer", 6, 300_000)
    assert storage.modified("a/c/file") > 1.7e9
    assert storage.download("a/c/file", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == bytes(300_000)
    storage.remove("a/b")
    storage.remove("a/b")
    assert storage.names("a") == ["a/c/file"]


def _unreachable(s3: S3, patch: pytest.MonkeyPatch) -> str:
    patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    return f"{s3.url}/x"


def _without_credentials(s3: S3, patch: pytest.MonkeyPatch) -> str:
    patch.delenv("AWS_ACCESS_KEY_ID")
    patch.delenv("AWS_SECRET_ACCESS_KEY")
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    return f"{s3.url}/x"


def _without_a_bucket(s3: S3, patch: pytest.MonkeyPatch) -> str:
    return "s3://nobody-has-made-this/x"


def _without_its_package(s3: S3, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(objects, "find_spec", {}.get)
    return "gs://bucket/x"


def _behind_a_file(s3: S3, patch: pytest.MonkeyPatch) -> str:
    return "file:///dev/null/x"


@pytest.mark.parametrize(
    ("where", "line"),
    [
        (_unreachable, r"^storage 's3://fleet/x': Could not connect .*; is it reachable from here\?"),
        (_without_credentials, r"^storage 's3://fleet/x': refuses \(Unable to locate credentials\); credentials are "),
        (_without_a_bucket, r"^storage 's3://nobody-has-made-this/x': there is no such bucket or folder .*; make it"),
        (
            _without_its_package,
            r"^storage 'gs://bucket/x': needs the package gcsfs; in the clone: pip install -e '\.\[cloud\]'$",
        ),
        (_behind_a_file, r"^storage 'file:///dev/null/x': .*"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_line(
    where: Callable[[S3, pytest.MonkeyPatch], str], line: str, s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=line) as error:
        Mirror(open_objects(where(s3, monkeypatch)), tmp_path).check()
    assert "\n" not in str(error.value)
    assert SECRET not in str(error.value)


@pytest.mark.skipif(find_spec("gcsfs") is None, reason="gcsfs is not installed: pip install -e '.[cloud]'")
@pytest.mark.parametrize("code", [401, 403])
def test_a_refusal_of_google_is_one_line(code: int) -> None:
    from gcsfs.retry import HttpError, validate_response

    answer = {"error": {"code": code, "message": "Anonymous caller does not have storage.objects.create access."}}
    with pytest.raises((OSError, HttpError)) as refused:
        validate_response(code, json.dumps(answer), "https://storage.googleapis.com/upload/storage/v1/b/fleet/o")
    line = str(described("gs://fleet/x", refused.value))
    assert line.startswith("storage 'gs://fleet/x': refuses (")
    assert "Anonymous caller" in line
    assert "credentials are taken from" in line
    assert "\n" not in line


def test_a_large_file_comes_to_google_in_pieces_and_is_whole(gcs: str, tmp_path: Path) -> None:
    storage = open_objects(f"{gcs}/large")
    content = np.random.default_rng(0).bytes(6 << 20)
    (tmp_path / "file").write_bytes(content)
    storage.upload(tmp_path / "file", "file")
    assert storage.download("file", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == content


def test_an_output_folder_of_another_version_is_refused(bucket: str, tmp_path: Path) -> None:
    mirror = Mirror(open_objects(bucket), tmp_path)
    mirror.check()
    mirror.check()
    mirror.objects.write("autotailor.json", b'{"format": 2}')
    with pytest.raises(UserError, match=r"'autotailor.json' there says .*2.*reads format 1; choose another"):
        mirror.check()


@pytest.mark.parametrize("url", ["ssh"], indirect=True)
def test_a_name_that_another_file_had_for_a_moment_is_taken(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SFTP's rename fails; the other file is removed before anybody can look at it."""
    storage: Any = open_objects(url)
    rename = storage.system.ftp.rename
    names = iter(["theirs"])

    def renamed(source: str, target: str) -> None:
        for other in names:
            storage.write("lock", other.encode())
            try:
                rename(source, target)
            finally:
                storage.remove("lock")
        rename(source, target)

    monkeypatch.setattr(storage.system.ftp, "rename", renamed)
    assert storage.create("lock", b"ours")
    assert storage.read("lock") == b"ours"
    assert not storage.create("lock", b"later")
