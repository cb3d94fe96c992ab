"""The example client in C++, compiled as its users do, beside a real service."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.docs.documents import ROOT
from tests.support.runtime.fixtures import LocalServed
from tests.support.runtime.service_process import SAMPLE, images, logits_of

SOURCE = ROOT / "deploy" / "client" / "infer.cpp"
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
INCLUDED = "#include <curl/curl.h>\nint main() { return 0; }\n"


def built(source: str | Path, program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A compiler's run. source: a file, or a text."""
    given = None if isinstance(source, Path) else source
    files = ["-"] if given is not None else [str(source)]
    command = ["g++", "-std=c++11", *words, "-xc++", *files, "-lcurl", "-o", str(program)]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled example; errors of memory end it where the compiler can make it so."""
    folder = tmp_path_factory.mktemp("program")
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    if built(INCLUDED, folder / "empty").returncode != 0:
        pytest.skip("no curl/curl.h here: install libcurl4-openssl-dev")
    works = built(INCLUDED, folder / "empty", *SANITIZERS).returncode == 0
    sanitizers = SANITIZERS if works and subprocess.run([folder / "empty"], check=False).returncode == 0 else ()
    done = built(SOURCE, folder / "infer", *WARNINGS, *sanitizers)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "infer"


def ran(program: Path, *words: object) -> subprocess.CompletedProcess[str]:
    every = [str(program), *map(str, words)]
    return subprocess.run(every, capture_output=True, text=True, timeout=300, check=False)


def test_the_example_prints_the_classes_of_images_as_the_service_answers_them(
    program: Path, local: LocalServed, tmp_path: Path
) -> None:
    x, file = images(4), tmp_path / "x.f32"
    x.tofile(file)
    done = ran(program, local.path, file, *SAMPLE)
    assert (done.returncode, done.stderr) == (0, "")
    *rows, head = done.stdout.splitlines()
    logits, parameters = logits_of(local.service.http, x)
    assert [int(row.split()[0]) for row in rows] == logits.argmax(axis=1).tolist()
    assert np.array_equal(np.array([row.split()[1] for row in rows], np.float32), logits.max(axis=1))
    assert json.loads(head)["parameters"]["subnet"] == parameters["subnet"]


def test_what_goes_wrong_is_one_line(program: Path, local: LocalServed, tmp_path: Path) -> None:
    file = tmp_path / "x.f32"
    images(4).tofile(file)
    for words, code, line in (
        ((local.path,), 2, "usage: infer SOCKET FILE CHANNELS HEIGHT WIDTH"),
        ((local.path, file, 3, 17, 16), 2, "has no whole images of this size"),
        ((local.path, file, 3, 8, 32), 1, "shape [4, 3, 8, 32]; allowed: [N, 3, 16, 16]"),
        ((tmp_path / "none", file, *SAMPLE), 1, f"infer: {tmp_path / 'none'}: "),
    ):
        done = ran(program, *words)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.count("\n") == 1
        assert line in done.stderr
