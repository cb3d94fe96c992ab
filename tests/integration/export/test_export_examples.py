"""The manifest says how a file runs, and the programs beside it run it so: they give the outputs that were checked."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import tailor_ir
from profiling_agents.client import local_agent
from tasks import export
from tasks.base.artifacts import read_lines
from tasks.base.errors import UserError
from tasks.base.schemas.placed import ChosenImplementations
from tasks.export.running import EXAMPLES, OF_SUBNET, OF_SUPERNET, TEMPLATES, UNTIMED
from tests.support.tables import export_examples
from tests.support.tables.export_examples import ENGINES, TOLERANCE, Exported, export_on, run_program

backend = export_examples.backend
exported = export_examples.exported


def test_python_examples_give_the_outputs_that_were_checked(exported: Exported) -> None:
    programs = [name for file in exported.card.files.values() for name in file.examples if name.endswith(".py")]
    assert len(programs) == len(exported.card.files)
    for name in programs:
        output = run_program([sys.executable, "-I", name, "x.f32"], exported.folder)
        assert exported.difference(output) <= (2e-2 if "fp16" in name else TOLERANCE["fp32"]), name
        zeros = run_program([sys.executable, "-I", name], exported.folder)
        assert len(zeros.split()) == len(exported.expected)
        assert zeros != output


def test_examples_are_short_and_say_nothing_of_this_project(exported: Exported) -> None:
    for file in exported.card.files.values():
        for name in file.examples:
            text = (exported.folder / name).read_text()
            assert text.count("\n") <= 40
            assert "autotailor" not in text
            assert exported.card.digest not in text, "readable names are other names"


def test_the_manifest_says_how_each_file_runs(exported: Exported, backend: str) -> None:
    for name, file in exported.card.files.items():
        run = file.run
        assert run is not None
        assert (run.runtime, run.threads, run.precision) == (file.runtime, run.threads, "fp32")
        assert run.build
        assert [one.shape for one in run.inputs] == [exported.x.shape]
        assert [one.shape for one in run.outputs] == [(1, len(exported.expected))]
        assert bool(run.masks) == (backend == "ncnn" and name != "onnx" and name != "torch")
        if file.on_device:
            assert run.settings == {**run.settings, **SETTINGS[backend]}
            told = (exported.folder / next(iter(file.examples))).read_text()
            assert all(setting in told for setting in SETTINGS[backend])
    text = (exported.folder / f"{exported.card.digest}.md").read_text()
    assert f"{exported.card.digest}.onnx.py" in text
    assert all(f"{setting}={value}" in text for setting, value in SETTINGS[backend].items())


SETTINGS: dict[str, dict[str, Any]] = {
    "ncnn": {
        "num_threads": 1,
        "lightmode": False,
        "use_packing_layout": False,
        "blob_allocator": "UnlockedPoolAllocator",
    },
    "onnxruntime": {
        "intra_op_num_threads": 1,
        "graph_optimization_level": "ORT_ENABLE_EXTENDED",
        "execution_order": "PRIORITY_BASED",
        "enable_mem_pattern": False,
        "session.intra_op.allow_spinning": "0",
    },
    "openvino": {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "CPU_DENORMALS_OPTIMIZATION": True},
    "torch": {"num_threads": 1, "memory_format": "channels_last"},
}
"""What the engines above are in the runtimes' own words, with settings that do not depend on them."""


def test_the_manifest_says_what_each_choice_brought_and_on_what_it_was_measured(
    exported: Exported, backend: str
) -> None:
    first, *given = ENGINES[backend].items()
    wanted: dict[str, tuple[Any, str]] = {"=".join(first): (0.9, OF_SUPERNET)}
    wanted |= {"=".join(one): (None, UNTIMED) for one in given}
    wanted["all of these options"] = (0.8, OF_SUPERNET)
    for name, file in exported.card.files.items():
        assert file.run is not None
        found = {one.choice: (one.ratio, one.measured) for one in file.run.brought}
        masks = found.pop("masks", None)
        assert found == (wanted if file.on_device else {})
        assert (masks is not None) == (backend == "ncnn" and name.startswith("ncnn"))
        if masks is not None:
            timed = {line["key"] for line in read_lines(exported.folder / "winners_measured.jsonl")}
            assert f"{exported.card.digest} by the runtime's own choices" in timed
            ratio, measured = masks
            assert measured == OF_SUBNET
            assert ratio is not None
            assert 0.01 < ratio < 100


def test_examples_follow_their_files_to_readable_names(exported: Exported, tmp_path: Path) -> None:
    export.write_readable(exported.folder, tmp_path / "board")
    index = json.loads((tmp_path / "board" / "index.json").read_text())
    programs = [name for name in index["winners"][0]["files"] if name.endswith(".onnx.py")]
    assert len(programs) == 1
    exported.x.tofile(tmp_path / "board" / "x.f32")
    output = run_program([sys.executable, "-I", programs[0], "x.f32"], tmp_path / "board")
    assert exported.difference(output) <= TOLERANCE["fp32"]


@pytest.mark.long
def test_files_of_any_batch_have_examples_that_take_any_batch(supernet: Path, tmp_path: Path) -> None:
    with local_agent("onnxruntime") as client:
        made = export_on(client, supernet, tmp_path, ("onnx", "torch"), settings={"dynamic_batch": True})
    np.concatenate([made.x] * 3).tofile(made.folder / "three.f32")
    for file in made.card.files.values():
        assert file.run is not None
        assert file.run.inputs[0].shape[0] is None
        (program,) = (name for name in file.examples if name.endswith(".py"))
        output = run_program([sys.executable, "-I", program, "three.f32"], made.folder)
        three = np.array(output.split(), np.float32).reshape(3, -1)
        assert np.abs(three - made.expected).max() <= TOLERANCE["fp32"] * np.abs(made.expected).max()


def test_an_unknown_implementation_is_one_line_before_anything_is_measured(supernet: Path, tmp_path: Path) -> None:
    feature = next(one for one in tailor_ir.load(supernet).unique_operators() if one.operator == "Conv")
    newer = ChosenImplementations(operators={feature.digest: "im2col"})
    with local_agent("ncnn") as client, pytest.raises(UserError, match=r"got 'im2col' .*; allowed: sgemm, direct; .*"):
        export_on(client, supernet, tmp_path, ("ncnn",), implementations=newer)
    assert not list((tmp_path / "out").iterdir())


def test_every_template_belongs_to_a_runtime() -> None:
    named = {f"{name}.jinja" for names in TEMPLATES.values() for name in names}
    parts = {"pictures.py.jinja"}  # included by templates of several runtimes
    assert {file.name for file in EXAMPLES.iterdir()} == named | parts
    assert all(part in "".join((EXAMPLES / name).read_text() for name in named) for part in parts)


@pytest.mark.parametrize("backend", ["onnxruntime"], indirect=True)
def test_the_cpp_example_of_onnxruntime_compiles_and_gives_the_outputs_that_were_checked(
    exported: Exported, tmp_path: Path
) -> None:
    header = "#include <onnxruntime_cxx_api.h>\n"
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    found = subprocess.run(["g++", "-E", "-xc++", "-"], input=header, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("no onnxruntime_cxx_api.h here: the Python package has the library without its headers")
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    program = tmp_path / "run"
    source = f"{exported.card.digest}.onnx.cpp"
    link = [str(library), f"-Wl,-rpath,{library.parent}"]
    run_program(["g++", "-Wall", "-Werror", "-std=c++17", source, "-o", str(program), *link], exported.folder)
    output = run_program([str(program), f"{exported.card.digest}.onnx", "x.f32"], exported.folder)
    assert exported.difference(output) <= TOLERANCE["fp32"]
