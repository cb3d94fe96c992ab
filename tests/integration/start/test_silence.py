"""No process of ours looks anybody up, connects to another machine, or writes into the user's folders.

Reports of ONNX Runtime are native code: processes get a recorder before libc, and a home of their own, which stays empty.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import tailor_ir
from tasks.base.schemas.exports import FileRun, FileTensor
from tasks.export.running import examples
from tests.support.docs.documents import ROOT
from tests.support.ir.networks import small_net
from tests.support.runtime.bundled import write_plain_bundle

SOURCE = Path(__file__).with_name("recorder.c")
SESSION = """
import onnxruntime
session = onnxruntime.InferenceSession({model!r})
session.run(None, {{"x": __import__("numpy").zeros((1, 4), "float32")}})
"""
AGENT = """
from profiling_agents.client import local_agent
with local_agent({backend!r}) as client:
    print(client.capabilities().backend)
"""
OWN_FOLDERS = {".cache/autotailor"}


class Recorded:
    """Runs programs with a recorder and an empty home.

    Of the environment, paths alone are passed on: ONNX Runtime, for one, reports nothing where `CI` is set.
    """

    def __init__(self, recorder: Path, folder: Path) -> None:
        self.home, self.lines, self.work = folder / "home", folder / "recorded", folder / "work"
        self.home.mkdir()
        self.work.mkdir()
        others = {name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH", "LANG")}
        self._environment = others | {
            "HOME": str(self.home),
            "LD_PRELOAD": str(recorder),
            "PYTHONPATH": str(ROOT),
            "RECORDED": str(self.lines),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *words: str) -> str:
        """What a Python program printed."""
        command = [sys.executable, *words]
        done = subprocess.run(
            command, env=self._environment, cwd=self.work, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def told(self) -> list[str]:
        """Look-ups, connections, and files in the home that are not the project's."""
        lines = self.lines.read_text().splitlines() if self.lines.exists() else []
        files = [file.relative_to(self.home).as_posix() for file in self.home.rglob("*") if file.is_file()]
        return [*lines, *(file for file in files if not any(file.startswith(own) for own in OWN_FOLDERS))]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler for the recorder")
    library = tmp_path_factory.mktemp("recorder") / "recorder.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


@pytest.fixture
def recorded(recorder: Path, tmp_path: Path) -> Recorded:
    return Recorded(recorder, tmp_path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("model") / "net.onnx"
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), file)
    return str(file)


def test_the_recorder_sees_what_a_process_asks_for(recorded: Recorded) -> None:
    script = (
        "import pathlib, socket\n"
        "for ask in (lambda: socket.getaddrinfo('example.org', 80), lambda: socket.socket().connect(('192.0.2.1', 80))):\n"
        "    try: ask()\n"
        "    except OSError: pass\n"
        "pathlib.Path.home().joinpath('report').write_text('')\n"
    )
    recorded.run("-c", script)
    assert recorded.told == ["lookup example.org", "connect 192.0.2.1", "report"]


def test_onnxruntime_alone_would_report(recorded: Recorded, model: str) -> None:
    import onnxruntime

    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 31):
        pytest.skip("this version reports nothing")
    recorded.run("-c", SESSION.format(model=model))
    assert any(".onnxruntime/" in line for line in recorded.told)


@pytest.mark.parametrize("room", ["adaptive_runtime", "flows", "profiling_agents", "tailor_ir", "tasks"])
def test_after_any_room_a_session_reports_nothing(room: str, recorded: Recorded, model: str) -> None:
    recorded.run("-c", f"import {room}\n{SESSION.format(model=model)}")
    assert recorded.told == []


@pytest.mark.parametrize("backend", ["onnxruntime", "ncnn", "openvino", "executorch", "torch"])
def test_an_agent_reports_nothing(backend: str, recorded: Recorded) -> None:
    if backend in ("openvino", "executorch"):
        pytest.importorskip(backend)
    assert recorded.run("-c", AGENT.format(backend=backend)).strip() == backend
    assert recorded.told == []


def test_a_bundle_on_a_device_reports_nothing(recorded: Recorded, tmp_path: Path) -> None:
    net = tailor_ir.compile(small_net(), torch.randn(1, 3, 16, 16), {"*.width_mult": [0.5, 1]})
    write_plain_bundle(net, [net.max_config], tmp_path / "bundle", samples=4)
    recorded.run("-m", "adaptive_runtime", "check", str(tmp_path / "bundle"))
    assert recorded.told == []


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_an_exported_example_reports_nothing(runtime: str, recorded: Recorded, model: str) -> None:
    pytest.importorskip(runtime)
    run = FileRun(
        runtime=runtime,
        version="1",
        build="1",
        provider="CPUExecutionProvider",
        threads=1,
        precision="fp32",
        settings={},
        inputs=(FileTensor(name="x", shape=(1, 4)),),
        outputs=(FileTensor(name="y", shape=(1, 4)),),
    )
    text = examples(run, "onnx", on_device=True)[".py"]
    shutil.copy(model, recorded.work / "net.onnx")
    (recorded.work / "net.onnx.py").write_text(text)
    output = recorded.run("-I", "net.onnx.py")
    assert np.array_equal(np.array(output.split(), float), np.zeros(4))
    assert recorded.told == []
