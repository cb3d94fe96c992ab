"""Input that nobody expects is one line: names, pipes, code that ends Python, files that are nested without end."""

import ast
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import tailor_ir
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles.manifest import BundleManifest
from flows.cli import entry
from flows.config.compose import compose_config
from tasks.base.artifacts import Store
from tasks.base.errors import UserError
from tasks.base.schemas.exports import FileRun, FileTensor
from tasks.base.schemas.winners import Front
from tasks.data import DataSettings, load_splits
from tasks.data.samples import SampleForm
from tasks.data.source import listing_of
from tasks.evaluation.models.creation import create_callable
from tasks.evaluation.models.settings import ModelSettings
from tasks.export.running import examples

DEEP = "[" * 100_000
PIXELS = np.zeros((8, 8, 3), np.uint8)


def images(root: Path, *classes: str) -> DataSettings:
    """A folder of small images."""
    for name in classes:
        (root / name).mkdir()
        for number in range(4):
            Image.fromarray(PIXELS).save(root / name / f"{number}.png")
    return DataSettings.model_validate({"kind": "imagefolder", "path": root, "resolution": 32})


@pytest.mark.parametrize("read", [load_splits, lambda settings: listing_of(settings.path)])
def test_a_name_that_is_not_utf8_is_told(read: object, tmp_path: Path) -> None:
    settings = images(tmp_path, "a", "b")
    try:
        os.rename(tmp_path / "a" / "0.png", os.fsencode(tmp_path / "a") + b"/\xff.png")
    except OSError:
        pytest.skip("names of this file system are UTF-8")
    with pytest.raises(UserError, match=r"xff|udcff") as raised:
        read(settings)  # type: ignore[operator]
    assert str(raised.value).isprintable()
    assert "not UTF-8" in str(raised.value)


@pytest.mark.parametrize("read", [load_splits, lambda settings: listing_of(settings.path)])
def test_a_pipe_among_images_is_not_waited_for(read: object, tmp_path: Path) -> None:
    settings = images(tmp_path, "a", "b")
    os.mkfifo(tmp_path / "a" / "x.png")
    with pytest.raises(UserError, match="is a pipe, socket or device"):
        read(settings)  # type: ignore[operator]


def test_a_class_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one class alone, cat: there is nothing to tell it from"):
        load_splits(images(tmp_path, "cat"))


@pytest.mark.parametrize(
    "where", ["import sys; sys.exit(0)\ndef net(**_): ...", "import sys\ndef net(**_): sys.exit(0)"]
)
def test_a_users_function_that_ends_python_is_told(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("leaving.py").write_text(where)
    with pytest.raises(UserError, match=r"SystemExit.*leaving\.py:"):
        create_callable(ModelSettings(name="leaving.py:net"), 10, SampleForm((3, 32, 32)))


def test_a_command_that_foreign_code_ends_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "_execute", lambda _: sys.exit(0))
    assert entry.main(["run"]) == entry.BAD_INPUT
    assert "ended Python with exit code 0" in capsys.readouterr().err
    monkeypatch.setattr(entry, "_execute", lambda _: "\udcff".encode())
    assert entry.main(["run"]) == entry.BAD_INPUT
    assert "is a name that is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["a: [1\nb: }", "a:\n\t- 1", DEEP, b"\xff\xfe\x00"], ids=str)
def test_a_config_file_with_a_fault_is_named(content: str | bytes, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r"config-dir.*no readable YAML") as raised:
        compose_config("config", ["data=mine"], tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("target", ["round", ".", ".."])
def test_links_that_lead_in_a_circle_are_told(target: str, tmp_path: Path) -> None:
    (tmp_path / "data" / "cats").mkdir(parents=True)
    (tmp_path / "data" / "cats" / "round").symlink_to(target)
    with pytest.raises(UserError, match=r"^data\.path: link '.*cats/round' leads in a circle; allowed: .*; remove it$"):
        load_splits(DataSettings(kind="imagefolder", path=tmp_path / "data"))


def test_nested_brackets_are_no_supernet(tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(DEEP)
    for read in (tailor_ir.load, tailor_ir.load_spec):
        with pytest.raises(
            tailor_ir.TailorError, match=r"^SuperNet '.*': cannot be read \(nested too deep\); compile it again$"
        ):
            read(tmp_path)


def test_nested_brackets_are_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(AdaptiveError, match="nested too deep"):
        BundleManifest.from_json(DEEP)
    (tmp_path / "front.json").write_text(DEEP)
    with pytest.raises(UserError, match="nested too deep"):
        Front.read(tmp_path / "front.json")


@pytest.mark.parametrize("content", [{}, [], None])
def test_a_result_that_says_nothing_is_made_again(content: object, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.open_stage("base", "k").publish(content)  # type: ignore[arg-type]
    folder = store.open_stage("base", "k")
    assert not folder.complete
    assert "result.json has no result" in folder.mended[0]


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20) | st.sampled_from(
    ['"""\nimport os\n"""', "x\n#include <evil>", "*/ int x; /*", "a b", "\\", "\U0001f600", "'\"", "??/"]
)


@given(st.lists(NAMES, min_size=1, max_size=3, unique=True), NAMES)
def test_programs_spell_names_of_foreign_files(inputs: list[str], output: str) -> None:
    run = FileRun(
        runtime="onnxruntime",
        version="1",
        build="",
        provider="CPUExecutionProvider",
        threads=1,
        precision="fp32",
        settings={},
        inputs=tuple(FileTensor(name=name, shape=(1, 3)) for name in inputs),
        outputs=(FileTensor(name=output, shape=(1, 2)),),
    )
    programs = examples(run, "onnx", on_device=True)
    tree = ast.parse(programs[".py"])
    assert set(inputs) <= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not any("evil" in line for line in programs[".cpp"].splitlines() if line.startswith("#"))
    (names,) = (line for line in programs[".cpp"].splitlines() if "const char* outputs[]" in line)
    literal = names.partition('"')[2].rpartition('"')[0]
    decoded = literal.encode().decode("unicode_escape").encode("latin-1").decode()
    assert decoded == output
    assert literal.isascii()
    assert json.dumps(literal)
