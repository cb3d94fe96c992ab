"""Addresses of output folders: what is allowed, and that a secret in one is refused and shown nowhere."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from flows.cli import main
from flows.storage import OutputPlace, local_folder

SECRET = "wJalrXUtnFEMI"
PLACE: TypeAdapter[Path | str] = TypeAdapter(OutputPlace)


def test_an_address_is_kept_as_it_is_and_a_path_is_a_path(own_cache: Path) -> None:
    for text in (
        "s3://bucket/runs/a",
        "gs://bucket",
        "ssh://me@board:2222/srv/runs",
        "file:///srv/runs",
        "memory://runs",
    ):
        assert PLACE.validate_python(f"{text}/") == PLACE.validate_python(text) == text
        folder = local_folder(text)
        assert folder.is_relative_to(own_cache)
        assert folder != local_folder(f"{text}b")
    assert PLACE.validate_python("s3://bucket//runs//a") == "s3://bucket/runs/a"
    assert PLACE.validate_python("runs/a") == Path("runs/a") == local_folder(Path("runs/a"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"s3://AKIA:{SECRET}@bucket/runs", "more than s3://BUCKET/PATH in it, which is not shown; credentials are"),
        (f"s3://AKIA:{SECRET}/x@bucket/runs", "more than s3://BUCKET/PATH in it"),
        (f"s3://bucket/runs?X-Amz-Signature={SECRET}", "more than s3://BUCKET/PATH in it"),
        (f"s3://bucket:{SECRET}/runs", "no s3://BUCKET/PATH and is not shown; credentials are"),
        (f"ssh://me:{SECRET}@board/srv", "no ssh://USER@HOST/PATH and is not shown"),
        ("ssh://me@board", "no ssh://USER@HOST/PATH"),
        ("file://board/srv", "no file:///PATH and is not shown"),
        ("s3://bucket/../other", "no s3://BUCKET/PATH"),
        ("http://board/runs", "got http; allowed: a path, s3://BUCKET/PATH, gs://"),
        ("zip::s3://bucket/a.zip", "got zip::s3; allowed: a path, s3://BUCKET/PATH"),
    ],
)
def test_another_address_is_refused_without_what_may_be_secret(text: str, line: str) -> None:
    with pytest.raises(ValidationError) as error:
        PLACE.validate_python(text)
    told = str(error.value.errors()[0]["ctx"]["error"])
    assert line in told
    assert SECRET not in told


def test_a_command_shows_no_secret_of_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lut", "show", f"output_dir='s3://AKIA:{SECRET}@bucket/runs'"]) == 2
    told = capsys.readouterr()
    assert "output_dir: got an address with more than s3://BUCKET/PATH in it, which is not shown" in told.err
    assert SECRET not in told.out + told.err
