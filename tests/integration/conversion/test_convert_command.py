"""`autotailor convert`, through the command line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import yaml

from flows.cli import main
from tests.support.conversion.small_models import model, node, number, operators, weights

CONV = model(
    [node("Conv", "x w", "i"), node("Mul", "i w2", "j"), node("Identity", "j", "k"), node("Relu", "k", "y")],
    {"w": weights(4, 4, 3, 3), "w2": weights(4, 1, 1)},
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file with a convolution, a scale, a no-op and an activation."""
    onnx.save(CONV, tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def convert(source: Path, *words: str) -> Any:
    """The JSON of a command that succeeds."""
    target, file = source.with_name("out.onnx"), source.with_name("result.json")
    assert main(["convert", str(source), str(target), *words, "--json", str(file)]) == 0
    return json.loads(file.read_text())


def test_the_file_is_written_and_what_was_done_is_shown(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = convert(source)
    shown = capsys.readouterr().out
    written = onnx.load(result["file"])
    assert operators(written) == ["Conv", "Relu"]
    assert (result["nodes_before"], result["nodes_after"]) == (4, 2)
    assert result["bytes_before"] == source.stat().st_size
    assert result["bytes_after"] == Path(result["file"]).stat().st_size
    assert {rule["name"]: rule["times"] for rule in result["rules"]} == {"onnxslim": 1}
    assert sum(rule["nodes_fewer"] for rule in result["rules"]) == 2
    assert 0 <= result["difference"] <= 1e-5
    assert result["undone"] == []
    assert "nodes: 4 → 2" in shown
    assert all(rule["name"] in shown for rule in result["rules"])
    x = weights(2, 4, 6, 6, seed=9)
    one, other = (
        onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for file in (source, result["file"])
    )
    assert np.allclose(one, other, atol=1e-6)


def test_without_checks_the_result_says_so(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = convert(source, "check=false")
    assert result["difference"] is None
    assert "largest difference of an output: not checked" in capsys.readouterr().out


def test_fewer_nodes_can_be_asked_for(tmp_path: Path) -> None:
    nodes = [
        node("Div", "x root", "i"),
        node("Erf", "i", "j"),
        node("Add", "j one", "k"),
        node("Mul", "x k", "l"),
        node("Mul", "l half", "m"),
        node("Conv", "m w", "y"),
    ]
    numbers = {"root": number(2**0.5), "one": number(1), "half": number(0.5)}
    onnx.save(model(nodes, {**numbers, "w": weights(4, 4, 1, 1)}), tmp_path / "gelu.onnx")
    kept = convert(tmp_path / "gelu.onnx")
    fewest = convert(tmp_path / "gelu.onnx", "fewest=true")
    assert (kept["nodes_after"], fewest["nodes_after"]) == (6, 5)
    assert [rule["name"] for rule in fewest["rules"]] == ["halves of Gelu"]
    assert fewest["difference"] <= 1e-5


def test_options_can_be_shown(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(source), "out.onnx", "seed=3", "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == {"check": True, "seed": 3, "inputs": None, "fewest": False}


@pytest.mark.long
def test_the_command_runs_as_a_program(source: Path) -> None:
    command = [sys.executable, "-m", "flows.cli", "convert", "in.onnx", "out.onnx"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "COLUMNS": "120"}
    done = subprocess.run(command, cwd=source.parent, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert operators(onnx.load(source.with_name("out.onnx"))) == ["Conv", "Relu"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "convert: got 0 files; allowed: two; write autotailor convert IN.onnx OUT.onnx"),
        (["in.onnx"], "convert: got 1 files; allowed: two"),
        (["in.onnx", "a.onnx", "b.onnx"], "convert: got 3 files; allowed: two"),
        (["nothing.onnx", "out.onnx"], "network 'nothing.onnx': no such file; give the path of an .onnx file"),
        (["text.onnx", "out.onnx"], "network 'text.onnx': not a readable ONNX file"),
        (["empty.onnx", "out.onnx"], "network 'empty.onnx': holds no operators"),
        (
            ["apart.onnx", "out.onnx"],
            "tensor 'w' is stored in '../w.bin'; allowed: files inside the model's own folder",
        ),
        (["in.onnx", "in.onnx"], "convert: 'in.onnx' is read and written; name another file last"),
        (["in.onnx", "./link.onnx"], "convert: 'link.onnx' is read and written"),
        (["in.onnx", "out.onx"], "convert: got 'out.onx'; allowed: a file that ends in .onnx"),
        (["in.onnx", "nowhere/out.onnx"], "convert: 'nowhere/out.onnx': its folder does not exist"),
        (["in.onnx", "folder.onnx"], "convert: 'folder.onnx': is a folder"),
        (["in.onnx", "out.onnx", "--json", "in.onnx"], "--json: 'in.onnx' is one of the models"),
        (["in.onnx", "out.onnx", "chek=false"], "option 'chek': is unknown; .*did you mean 'check'?"),
        (["in.onnx", "out.onnx", "check=maybe"], "check: got 'maybe'; allowed: "),
        (["in.onnx", "out.onnx", "seed=-1"], "seed: got -1; allowed: 0 or more"),
        (["in.onnx", "out.onnx", "--jsn", "x"], "command line: unrecognized arguments: --jsn"),
        (["in.onnx", "out.onnx", "--dry-run"], "--dry-run: is not a flag of 'convert'"),
        (["foreign.onnx", "out.onnx"], "conversion: onnxruntime cannot run the model as it is"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], line: str, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = source.parent
    monkeypatch.chdir(folder)
    (folder / "text.onnx").write_text("no model")
    (folder / "folder.onnx").mkdir()
    (folder / "link.onnx").symlink_to(source)
    empty, foreign, apart = onnx.ModelProto(), onnx.ModelProto(), onnx.ModelProto()
    for made in (empty, foreign, apart):
        made.CopyFrom(CONV)
    del empty.graph.node[:]
    onnx.save(empty, "empty.onnx")
    foreign.graph.node[0].domain = "nobody.knows"
    foreign.opset_import.add(domain="nobody.knows", version=1)
    onnx.save(foreign, "foreign.onnx")
    tensor = apart.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../w.bin")
    (folder / "apart.onnx").write_bytes(apart.SerializeToString())
    assert main(["convert", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("autotailor: ")
    assert told.count("\n") == 1
    assert re.search(line.replace("?", r"\?"), told), told
    assert not (folder / "out.onnx").exists()


def test_the_check_takes_the_users_inputs(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = source.with_name("inputs.npz")
    np.savez(file, x=weights(70, 4, 6, 6), labels=np.zeros(70))
    assert 0 <= convert(source, f"inputs={file}")["difference"] <= 1e-5, "labels are no inputs"
    np.savez(file, x=weights(2, 4, 6, 6))
    assert 0 <= convert(source, f"inputs={file}")["difference"] <= 1e-5
    for array, told in (
        ({"x": np.zeros((2, 4, 6), np.float32)}, r"input 'x' is float32 \(2, 4, 6\); allowed: float32 of "),
        (
            {"x": np.zeros((2, 5, 6, 6), np.float32)},
            r"input 'x' is float32 \(2, 5, 6, 6\)|cannot run the model on the given inputs",
        ),
        ({"y": np.zeros(3)}, r"inputs have no 'x' \(arrays: y\)"),
    ):
        np.savez(file, **array)
        assert main(["convert", str(source), str(source.with_name("o.onnx")), f"inputs={file}"]) == 2
        assert re.search(told, capsys.readouterr().err)
    assert main(["convert", str(source), str(source.with_name("o.onnx")), f"inputs={file}", "check=false"]) == 2
    assert "inputs are for the check" in capsys.readouterr().err
