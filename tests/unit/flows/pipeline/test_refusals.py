"""What cannot be is told from a look at files and numbers, and every other command line passes."""

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.config import RetargetConfig, RunConfig
from flows.operations.deployments.checks import fault_of
from flows.pipeline.refusals import check_given, check_places, check_writable
from tasks.base.errors import UserError
from tasks.data.settings import DataSettings
from tasks.data.source import check_folder
from tasks.evaluation.models.settings import ModelSettings, check_named
from tasks.search.settings import Settings as SearchSettings
from tests.support.docs.documents import ROOT

HEADER = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()


WHOLE = len(HEADER).to_bytes(8, "little") + HEADER + b"1234"


def archive(pickle: bytes, *, cut: int) -> bytes:
    """A zip archive, whose last bytes are cut off; it has a pickle as torch has one, unless that is empty."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as opened:
        opened.writestr("archive/data.pkl" if pickle else "archive/notes.txt", pickle)
    content = stream.getvalue()
    return content[: len(content) - cut]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"name": "resnet1"},
            r"timm has no network 'resnet1'; allowed: for example .*resnet18.*; see timm.list_models",
        ),
        ({"name": "zzzzzzzz"}, r"timm has no network 'zzzzzzzz'; allowed: those of timm.list_models"),
        ({"kind": "onnx", "path": "no.onnx"}, "model file 'no.onnx': does not exist; choose another"),
        ({"kind": "callable", "name": "no.py:f"}, "there is no file 'no.py'; allowed: FILE.py:function"),
        ({"checkpoint": "no.safetensors"}, "checkpoint 'no.safetensors': does not exist"),
        ({"checkpoint": "."}, "checkpoint '.': does not exist"),
    ],
)
def test_a_network_that_cannot_be(settings: dict[str, Any], line: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=line):
        check_named(ModelSettings.model_validate(settings))


NAMES = {"data": "data.py:splits", "loss": "losses.py:loss", "score": "losses.score:of"}


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ({}, None),
        ({"data": "datas.py:splits"}, r"data\.name 'datas\.py:splits': there is no file 'datas\.py'"),
        ({"data": "data.py:split"}, r"data\.name .*module 'data' has no attribute 'split'\); allowed: module:function"),
        ({"loss": "losses.py:lss"}, r"problem\.loss .*module 'losses' has no attribute 'lss'"),
        ({"score": "losses.score:off"}, r"problem\.score .*module 'losses\.score' has no attribute 'off'"),
        ({"score": "later.py:made"}, None),
    ],
)
def test_functions_of_the_user_that_cannot_be(
    names: dict[str, str], line: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "losses"
    package.mkdir()
    for file, text in {
        "data.py": "def splits(): raise SystemError('nothing is called')",
        "losses.py": "raise SystemError('nothing is imported')\nloss = None",
        "losses/__init__.py": "",
        "losses/score.py": "def of(): ...",
        "later.py": "globals()['ma' + 'de'] = 1",
    }.items():
        (tmp_path / file).write_text(text)
    chosen = {**NAMES, **names}
    problem = {"kind": "own", "loss": chosen["loss"], "score": chosen["score"]}
    config = RunConfig.model_validate({"data": {"kind": "own", "name": chosen["data"], "own_problem": problem}})
    if line is None:
        check_given(config)
    else:
        with pytest.raises(UserError, match=line):
            check_given(config)


@pytest.mark.parametrize(
    "content",
    [b"", b"1234", WHOLE[:20], b"\xff" * 64, (2).to_bytes(8, "little") + b"[]", (9).to_bytes(8, "little") + b"[" * 9],
    ids=["empty", "short", "torn", "not JSON", "no object", "nested"],
)
def test_a_checkpoint_that_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "net.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"is no \.safetensors file, or not all of one"):
        check_named(ModelSettings(checkpoint=tmp_path / "net.safetensors"))


@pytest.mark.parametrize("name", ["net.pt", "net.pth", "net.ckpt", "weights"])
@pytest.mark.parametrize(
    "content",
    [b"", b"some words, and no weights", b"PK\x03\x04", b"\x80\x02junk", archive(b"", cut=0), archive(b"1234", cut=30)],
    ids=["empty", "text", "head alone", "pickle of another", "archive of another", "torn"],
)
def test_a_file_that_torch_did_not_save_is_told_early(content: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    kind = "file of torch" if "." in name or content[:2] in (b"PK", b"\x80\x02") else "safetensors file"
    with pytest.raises(UserError, match=rf"{name}': is no {kind}, or not all of one; allowed: .*; choose another"):
        check_named(ModelSettings(checkpoint=tmp_path / name))


@pytest.mark.parametrize(
    "name", ["resnet18", "resnet18.a1_in1k", "tf_efficientnet_b0", "hf-hub:timm/resnet18", "vit_tiny_patch16_224"]
)
def test_networks_and_files_that_may_be_pass(name: str, tmp_path: Path) -> None:
    (tmp_path / "net.safetensors").write_bytes(WHOLE)
    torch.save({"weight": torch.zeros(1)}, tmp_path / "net.pt")
    torch.save({"weight": torch.zeros(1)}, tmp_path / "old.pth.tar", _use_new_zipfile_serialization=False)
    (tmp_path / "other.pt").write_bytes(WHOLE)
    (tmp_path / "nets.py").write_text("from networks import make")
    (tmp_path / "net.onnx").write_bytes(b"read later")
    check_named(ModelSettings(name=name))
    for checkpoint in ("net.safetensors", "net.pt", "old.pth.tar", "other.pt"):
        check_named(ModelSettings(name=name, checkpoint=tmp_path / checkpoint))
    check_named(ModelSettings(kind="callable", name=f"{tmp_path}/nets.py:make"))
    check_named(ModelSettings(kind="callable", name="some.module:make"))
    check_named(ModelSettings(kind="onnx", path=tmp_path / "net.onnx"))


def test_a_data_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "flat" / ".hidden").mkdir(parents=True)
    (tmp_path / "flat" / "image.png").write_bytes(b"")
    (tmp_path / "split" / "train").mkdir(parents=True)
    (tmp_path / "split" / "train" / "image.png").write_bytes(b"")
    for name, line in (
        ("absent", "does not exist; choose another"),
        ("file", "is no folder; choose another"),
        ("empty", "is empty; choose another"),
        ("flat", "no class folder; allowed: CLASS/FILES: a folder for each class of images"),
        ("split", "split/train': no class folder"),
    ):
        with pytest.raises(UserError, match=line):
            check_folder(DataSettings(kind="imagefolder", path=tmp_path / name))


def test_data_that_may_be_pass(tmp_path: Path) -> None:
    check_folder(DataSettings(kind="digits"))
    (tmp_path / "train" / "cats").mkdir(parents=True)
    check_folder(DataSettings(kind="imagefolder", path=tmp_path))
    (tmp_path / "all.parquet").write_bytes(b"")
    check_folder(DataSettings(kind="parquet", path=tmp_path / "all.parquet"))
    check_folder(DataSettings(kind="parquet", path=tmp_path))


@pytest.mark.parametrize(
    ("search", "line"),
    [
        ({"budgets_ms": [1, 1]}, r"budgets_ms=\[1,1\]; allowed: each above the one before, as \[1\]"),
        ({"budgets_ms": [3, 1, 2]}, r"as \[1,2,3\]"),
        ({"device_budgets_ms": {"a": [1, 2], "b": [2, 1]}}, r"device_budgets_ms.b=\[2,1\]"),
        ({"budgets_ms": [1, "2ms"]}, "got '2ms'; allowed: a number of milliseconds, without a unit: 2"),
        ({"device_budgets_ms": {"a": ["0.5 s"]}}, "without a unit: 500"),
        ({"budgets_ms": ["1e3us"]}, "without a unit: 1"),
        ({"budgets_ms": ["fast"]}, "valid number"),
        ({"budgets_ms": [0]}, "greater than 0"),
        ({"budgets_ms": [-1]}, "greater than 0"),
    ],
)
def test_budgets_that_cannot_be(search: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        SearchSettings.model_validate(search)


def test_budgets_that_belong_together_may_fall() -> None:
    found = SearchSettings.model_validate({"together": True, "device_budgets_ms": {"a": [1, 2], "b": [2, 1]}})
    assert found.budgets_of("b") == (2.0, 1.0)


def test_an_output_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, reason in (
        (tmp_path / "file" / "out", "Not a directory"),
        (Path("/proc/out"), "No such file or directory|Permission denied"),
    ):
        with pytest.raises(
            UserError, match=rf"output folder '{place}': cannot be written \(({reason})\); choose another"
        ):
            check_writable(place)
    check_writable(tmp_path / "a" / "b")
    assert [*tmp_path.iterdir()] == [tmp_path / "file"], "nothing is made"


def test_a_supernet_that_is_none(tmp_path: Path) -> None:
    for place, line in ((tmp_path / "absent", "is no folder"), (tmp_path, "has no SuperNet in it")):
        with pytest.raises(UserError, match=f"supernet '{place}': {line}; give the folder"):
            check_given(RetargetConfig(supernet=place))
    (tmp_path / "graph.json").write_text("{}")
    check_given(RetargetConfig(supernet=tmp_path))


def test_the_defaults_pass_and_make_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    check_given(RunConfig())
    check_places(RunConfig())
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("directory", "line"),
    [
        ("", "is not set; set it to the repository's folder"),
        ("{{ $AUTOTAILOR_DIR }}", "is not set"),
        ("here", "allowed: a whole path"),
        ("/tmp", "has no flows/operations/deployments/deployed.py; allowed: the repository's folder"),
    ],
)
def test_deployments_of_a_folder_that_has_no_flows_are_refused(directory: str, line: str) -> None:
    assert line in (fault_of(directory) or "")


def test_deployments_of_the_repository_and_of_folders_elsewhere_are_not_refused() -> None:
    assert fault_of(str(ROOT)) is None
    assert fault_of("/only/on/the/workers/machine") is None
