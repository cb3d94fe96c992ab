"""Exported ONNX files take and give the names and element types of the given file, and answer as the SubNet."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto

import tailor_ir
from profiling_agents.client import MeasureSettings, local_agent
from tasks import export
from tasks.base.artifacts import Workspace
from tasks.base.progress import Silent
from tasks.base.schemas.exports import Exports
from tasks.data import load_splits
from tasks.data.batches import answers, tensors
from tasks.evaluation.quantise import Settings as QuantiseSettings
from tasks.evaluation.subnets import EvaluationData
from tasks.training.compile import supernet_of
from tests.support.fronts import write_front
from tests.unit.data.test_files_with_state import config_of, taken, written

QUICK = MeasureSettings(time_cap_ms=5.0, warmup_ms=1.0, min_blocks=2, patience=0.0)
KINDS = {
    "uint8": ("uint8", 1),
    "int32": ("int32", 1),
    "int64": ("int64", 1),
    "float16": ("float16", 10),
    "double": ("float64", 11),
    "float": ("float32", 1),
}
"""ONNX's names of types: numpy's name, and the number of the type in which the network computes."""
COMPUTES = {1: "float", 10: "float16", 11: "double"}
COUNT, F = 40, 12
Signature = list[tuple[str, str, int]]


def network(folder: Path, kind: str, shapes: dict[str, list[int]]) -> Path:
    """A network in a file with the inputs `shapes`, all of one type, which computes in its own type or in float32."""
    number = KINDS[kind][1]
    given = ", ".join(f"{kind}[{', '.join(map(str, ('batch', *shape)))}] {name}" for name, shape in shapes.items())
    flat = [f"real_{name} = Cast<to={number}>({name})  flat_{name} = Flatten(real_{name})" for name in shapes]
    text = f"""net ({given}) => ({COMPUTES[number]}[batch, 5] y, {COMPUTES[number]}[batch, 7] embedding) {{
        {" ".join(flat)}
        both = Concat<axis=1>({", ".join(f"flat_{name}" for name in shapes)})
        hidden = MatMul(both, w)
        positive = Relu(hidden)
        embedding = MatMul(positive, u)
        y = MatMul(positive, v)
    }}"""
    kind_of = KINDS[kind][0] if number != 1 else "float32"
    rng = np.random.default_rng(0)
    size = sum(int(np.prod(shape)) for shape in shapes.values())
    sizes = {"w": (size, 32), "v": (32, 5), "u": (32, 7)}
    stored = {name: (0.2 * rng.normal(size=each)).astype(kind_of) for name, each in sizes.items()}
    return written(folder / "net.onnx", text, {}, **stored)


def signature(file: Path) -> tuple[Signature, Signature]:
    session = onnxruntime.InferenceSession(file)
    inputs, outputs = (
        [(one.name, one.type, len(one.shape)) for one in ends] for ends in (session.get_inputs(), session.get_outputs())
    )
    return inputs, outputs


def exported(folder: Path, file: Path, given: dict[str, np.ndarray], *options: str) -> Exports:
    """The largest and the smallest SubNet of the network in a file, exported into `folder` / "out". given: samples."""
    config = config_of(file, given, *options)
    data = load_splits(config.data)["train"]
    teacher = folder / "teacher.onnx"
    teacher.write_bytes(taken(file, data.form, constants=config.model.constants).SerializeToString())
    known = config.data.model_copy(update={"teacher": teacher})
    net = supernet_of(config.compile, config.model, known, None, None)
    net.save(folder / "supernet")
    splits = load_splits(known)
    images = EvaluationData(splits["test"], splits["train"], recalibration_images=16)
    write_front(folder, net, [(net.max_config, 1e6), (net.min_config, 1e6)])
    (folder / "out").mkdir()
    settings = export.Settings(
        formats=("onnx", "onnx_int8"), measure=QUICK, quantise=QuantiseSettings(max_loss_points=100), keep_winners=True,
        dynamic_batch=config.export.dynamic_batch,
    )  # fmt: skip
    request = export.ExportRequest(
        settings=settings, supernet=folder / "supernet", search=folder, data={"test": images}
    )
    with local_agent("onnxruntime") as client, client.lease():
        content = export.run(request, client, Workspace(out=folder / "out", progress=Silent()))
    return Exports.of_json(content, "here")


@pytest.mark.few(5)
@pytest.mark.parametrize("shapes", [{"x": [F]}, {"x": [3, 4, 4], "words": [F]}], ids=["one", "several"])
@pytest.mark.parametrize("kind", KINDS)
def test_exported_files_have_the_types_of_the_given_file(
    kind: str, shapes: dict[str, list[int]], tmp_path: Path
) -> None:
    file = network(tmp_path, kind, shapes)
    rng = np.random.default_rng(1)
    given = {name: rng.uniform(0, 9, (COUNT, *shape)).astype(KINDS[kind][0]) for name, shape in shapes.items()}
    found = exported(tmp_path, file, given)
    assert len({card.digest for card in found.subnets}) == 2
    loaded = tailor_ir.load(tmp_path / "supernet")
    for card in found.subnets:
        assert [(name, each.state, each.reason) for name, each in card.files.items()] == [
            (name, "ok", None) for name in ("onnx", "onnx_int8")
        ]
        for suffix in (".onnx", ".int8.onnx"):
            assert signature(tmp_path / "out" / f"{card.digest}{suffix}") == signature(file)
        exported_file = tmp_path / "out" / f"{card.digest}.onnx"
        stored = TensorProto.FLOAT16 if kind == "float16" else TensorProto.FLOAT
        assert {one.data_type for one in onnx.load(exported_file).graph.initializer if len(one.dims) == 2} == {stored}
        session = onnxruntime.InferenceSession(exported_file)
        samples = {name: one[:1] for name, one in given.items()}
        types = (torch.from_numpy(np.empty(0, loaded.structure.graph.input_type(name))).dtype for name in given)
        x = tuple(torch.from_numpy(one).to(own) for one, own in zip(samples.values(), types, strict=True))
        with torch.no_grad():
            expected = tensors(answers(loaded.build(card.config).eval(), x))
        for one, wanted in zip(session.run(None, samples), expected, strict=True):
            most = float(wanted.abs().max())
            np.testing.assert_allclose(one, wanted, rtol=0, atol=most * (1e-3 if kind == "float16" else 1e-5))
