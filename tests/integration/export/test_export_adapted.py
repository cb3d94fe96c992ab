"""Winners are exported as they have adapted, by side files: alone and in bundles, whose shared weights stay as they are."""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

import adaptive_runtime
import tailor_ir
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.weights import AdaptedSubnet, WeightMethod, WeightOptions
from flows.pipeline.pages import exported as page_facts
from profiling_agents.client import MeasureSettings, local_agent
from tailor_ir import CheckFailed, Config, SuperNet
from tailor_ir.spaces.selectors import SpaceSpec
from tailor_ir.supernet import network as supernets
from tasks import export
from tasks.adaptation import (
    AdaptiveSubnet,
    Anchor,
    GuardedSubnet,
    MethodName,
    MethodSettings,
    load_adapted,
    make_method,
    save_adapted,
)
from tasks.base.artifacts import Workspace, digest_of, read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.base.schemas.exports import Card, Exports
from tasks.base.schemas.winners import FRONT_FILE
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData, accuracy, count_correct, statistics_of
from tasks.exits.policies import MeasuredExit, SubnetPolicy
from tasks.export.adapted import adapted_winners, own_tensors, read_side_files
from tasks.export.replacing import ALIGNED
from tasks.export.stage import MEASURED_FILE
from tasks.measuring.subnets import Subject
from tasks.search import read_front
from tests.support.fronts import write_front
from tests.support.ir.elastic_networks import inverted
from tests.support.ir.networks import small_net

QUICK = MeasureSettings(time_cap_ms=10.0, warmup_ms=1.0, min_blocks=2, patience=0.0)
SPACE: SpaceSpec = {"*.width_mult": [0.5, 1], "resolution": [8, 16], "exits": ["stage.1.block.*"]}
FORMATS = ("onnx", "onnx_int8", "ncnn", "torch")
TOLERANCE = 1e-4
METHODS: tuple[MethodName, ...] = ("batchnorm", "tent", "cotta", "roid")
NIGHTLY_METHODS: tuple[MethodName, ...] = ("tent", "cotta")
ALIGNS: MethodName = "roid"
"""The method whose side file aligns images, as that of a `GuardedSubnet` does."""


class Made(NamedTuple):
    """A SuperNet with a front of its largest and its smallest SubNet, and images."""

    folder: Path
    images: EvaluationData

    @property
    def net(self) -> SuperNet:
        return tailor_ir.load(self.folder / "supernet")

    def side_file(self, config: Config, method: MethodName) -> Path:
        """Of a SubNet that has adapted to two batches of images that are lighter."""
        net, file = self.net, self.folder / f"{self.net.space.digest(config)}.{method}.safetensors"
        subnet = AdaptiveSubnet.of(net, config, statistics_of(net, config, self.images))
        height, width = net.input_shape(config)[-2:]
        batches = [x_BCHW for x_BCHW, _ in self.images.batches((height, width))]
        deviations = 1.0 if method == ALIGNS else None
        settings = MethodSettings(
            method=method, learning_rate=0.01, views=2, entropy_share=1.0, input_deviations=deviations
        )
        adapting = make_method(subnet, settings, batches[:1])
        for x_BCHW in batches[:2]:
            adapting.adapt(x_BCHW + 0.5)
        save_adapted(file, subnet, net, config)
        return file

    def adapted(self, config: Config, file: Path) -> AdaptiveSubnet:
        """The SubNet in torch, as its side file says."""
        net = self.net
        subnet = AdaptiveSubnet.of(net, config, statistics_of(net, config, self.images))
        load_adapted(file, subnet, net, config)
        return subnet

    def run(self, name: str, **settings: Any) -> tuple[Path, Exports]:
        """An export into a folder of its own."""
        out = self.folder / name
        out.mkdir()
        net = self.net
        exits = tuple(
            MeasuredExit(exit=one, alone_ms=1.0, latency_ms=1.0, accuracy={"test": 0.1}, share=0.5)
            for one in net.exits(net.max_config)
        )
        thresholds = {"measure": "top_probability", "thresholds": [0.3, *[None] * (len(exits) - 2)]}
        policies = [
            SubnetPolicy(digest=net.space.digest(config), config=dict(config), exits=exits, thresholds=thresholds)
            for config in (net.max_config,)
        ]
        chosen = export.Settings(measure=QUICK, **settings)
        with local_agent("onnxruntime") as client, client.lease():
            supernet, data = self.folder / "supernet", {"test": self.images}
            found = export.run(
                export.ExportRequest(
                    settings=chosen, supernet=supernet, search=self.folder / "search", data=data, policies=policies
                ),
                client,
                Workspace(out=out, progress=Silent()),
            )
        return out, Exports.model_validate(found)


METHOD_CASES = [pytest.param(name, marks=pytest.mark.long if name in NIGHTLY_METHODS else ()) for name in METHODS]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("adapted")
    network = small_net(blocks=3)
    network.classifier = nn.Linear(network.classifier.in_features, 10)
    tailor_ir.compile(network, torch.randn(1, 3, 16, 16), SPACE).save(folder / "supernet")
    net, search = tailor_ir.load(folder / "supernet"), folder / "search"
    search.mkdir()
    write_front(search, net, [(net.max_config, 1e6), (net.min_config, 1e6)])
    splits = load_splits(DataSettings(kind="digits", resolution=16))
    return Made(folder, EvaluationData(splits["test"], splits["train"], recalibration_images=64, limit=150))


@pytest.fixture(scope="module")
def plain(made: Made) -> tuple[Path, Exports]:
    """The export without side files."""
    return made.run("plain", bundle=True, adaptable=True)


class ExportedAdapted(NamedTuple):
    """The export with the side file of the largest SubNet, and this in torch."""

    out: Path
    result: Exports
    side_file: Path
    subnet: AdaptiveSubnet
    before: str

    @property
    def card(self) -> Card:
        return self.result.subnets[0]

    @property
    def aligns(self) -> bool:
        return self.subnet.alignment is not None


@pytest.fixture(scope="module", params=METHOD_CASES)
def exported(request: pytest.FixtureRequest, made: Made) -> ExportedAdapted:
    config, before = made.net.max_config, digest_of(made.folder / "supernet")
    file = made.side_file(config, request.param)
    settings = {"formats": FORMATS, "bundle": True, "adaptable": True, "adapted": (file,)}
    out, result = made.run(request.param, **settings)
    return ExportedAdapted(out, result, file, made.adapted(config, file), before)


@pytest.mark.parametrize("adapts", [False, True])
def test_a_file_with_other_weights_ends_the_export_in_one_line(
    made: Made, adapts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = supernets.subnet_onnx

    def wrong(*operands: Any, **named: Any) -> onnx.ModelProto:
        model = write(*operands, **named)
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.FLOAT:
                weights = onnx.numpy_helper.to_array(tensor) * np.float32(1.5)
                tensor.CopyFrom(onnx.numpy_helper.from_array(weights, tensor.name))
        return model

    files = (made.side_file(made.net.max_config, "batchnorm"),) if adapts else ()
    monkeypatch.setattr(supernets, "subnet_onnx", wrong)
    other = "the one that has adapted" if adapts else "the elastic one"
    with pytest.raises(
        CheckFailed, match=rf"^stage export, SubNet \w+: the exported SubNet answers otherwise than {other}"
    ) as failure:
        made.run(f"wrong, {adapts}", formats=("onnx",), adapted=files)
    assert "\n" not in str(failure.value)


def onnx_answers(file: Path, x_NCHW: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: x.numpy()[None]})[0] for x in x_NCHW])


def torch_answers(network: Any, x_NCHW: torch.Tensor) -> np.ndarray:
    with torch.inference_mode():
        return np.concatenate([network(x[None]).numpy() for x in x_NCHW])


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def images_of(made: Made, card: Card, count: int = 5) -> torch.Tensor:
    height, width = card.input_shape[-2:]
    return next(iter(made.images.batches((height, width))))[0][:count]


@pytest.mark.parametrize("lighter", [0.0, 0.8])
def test_files_answer_as_the_adapted_subnet_in_torch(made: Made, exported: ExportedAdapted, lighter: float) -> None:
    card, x = exported.card, images_of(made, exported.card) + lighter
    expected = torch_answers(exported.subnet, x)
    net, config = made.net, made.net.max_config
    source = torch_answers(net.build(config, statistics_of(net, config, made.images)), x)
    assert difference(source, expected) > 100 * TOLERANCE
    assert set(FORMATS) <= card.files.keys()
    assert {name: file.reason for name, file in card.files.items() if file.state != "ok"} == {}
    exact = [file.relative_difference for name, file in card.files.items() if name != "onnx_int8"]
    assert all(one is not None and one <= TOLERANCE for one in exact)
    assert difference(onnx_answers(exported.out / f"{card.digest}.onnx", x), expected) <= TOLERANCE
    assert difference(onnx_answers(exported.out / "bundle" / f"{card.digest}.onnx", x), expected) <= TOLERANCE
    archive = io.BytesIO((exported.out / f"{card.digest}.pt2").read_bytes())
    assert difference(torch_answers(torch.export.load(archive).module(), x), expected) <= TOLERANCE
    int8 = onnx_answers(exported.out / f"{card.digest}.int8.onnx", x)
    assert difference(int8, expected) < difference(int8, source)


def test_its_chain_ends_with_the_adapted_answers_and_has_no_thresholds(
    made: Made, plain: tuple[Path, Exports], exported: ExportedAdapted
) -> None:
    card, x = exported.card, images_of(made, exported.card)
    assert (plain[0] / f"{card.digest}.onnx.segments" / "thresholds.json").exists()
    bundle = OpenBundle.open(exported.out / "bundle")
    assert bundle.manifest.subnets[0].thresholds is None
    with adaptive_runtime.load(exported.out / "bundle", prepares=False) as model:
        model.use(card.digest, bundle.manifest.subnets[0].exits[-1].exit)
        found = model.infer(x.numpy()).logits
    assert difference(found, torch_answers(exported.subnet, x)) <= TOLERANCE


def test_shared_weights_and_other_subnets_stay_byte_for_byte(
    made: Made, plain: tuple[Path, Exports], exported: ExportedAdapted
) -> None:
    assert digest_of(made.folder / "supernet") == exported.before
    other, x = exported.result.subnets[1], images_of(made, exported.result.subnets[1])
    before, after = (folder / "bundle" for folder in (plain[0], exported.out))
    contents = {tensor.tobytes() for tensor in load_file(after / "weights.safetensors").values()}
    common = {n: t for n, t in load_file(before / "weights.safetensors").items() if n.endswith("/common")}
    used = {tensor.name for tensor in onnx.load(before / f"{other.digest}.onnx").graph.initializer}
    assert used & common.keys()
    assert all(tensor.tobytes() in contents for name, tensor in common.items() if name in used)
    models = [onnx.load(folder / f"{other.digest}.onnx") for folder in (before, after)]
    for model in models:
        del model.metadata_props[:]
    assert models[0].SerializeToString() == models[1].SerializeToString()
    for first, second in ((before, after), (plain[0], exported.out)):
        found, wanted = (onnx_answers(folder / f"{other.digest}.onnx", x) for folder in (first, second))
        assert np.array_equal(found, wanted)


def test_card_file_manifest_and_report_tell_the_side_file(
    made: Made, plain: tuple[Path, Exports], exported: ExportedAdapted
) -> None:
    sha256 = hashlib.sha256(exported.side_file.read_bytes()).hexdigest()
    card, other = exported.result.subnets
    assert other.adapted is None
    assert card.adapted is not None
    assert (card.adapted.sha256, card.adapted.steps) == (sha256, 2)
    assert card.adapted.tensors == len(exported.subnet.state())
    assert f"those of the side file with sha256 `{sha256}`" in (exported.out / f"{card.digest}.md").read_text()
    assert "adapted" not in (plain[0] / f"{card.digest}.md").read_text()
    model = onnx.load(exported.out / f"{card.digest}.onnx")
    told = {one.key: one.value for one in model.metadata_props}
    assert told["autotailor.adapted"] == sha256
    assert card.adapted.input_deviations == (1.0 if exported.aligns else None)
    assert ("(`input_deviations` 1)" in (exported.out / f"{card.digest}.md").read_text()) is exported.aligns
    assert told.get("autotailor.input_deviations") == ("1.0" if exported.aligns else None)
    facts = page_facts(exported.result)
    assert facts["SubNets as they have adapted"] == "1"
    assert ("of these with aligned images" in facts) is exported.aligns
    subnets = OpenBundle.open(exported.out / "bundle").manifest.subnets
    assert [one.adapted for one in subnets] == [sha256, None]
    before = json.loads((plain[0] / "bundle" / "bundle.json").read_text())
    assert all("adapted" not in one for one in before["subnets"]), "older run times read it"


def test_accuracies_are_those_of_the_adapted_subnet(
    made: Made, plain: tuple[Path, Exports], exported: ExportedAdapted
) -> None:
    height, width = exported.card.input_shape[-2:]
    found = count_correct(exported.subnet, made.images.batches((height, width)))
    assert exported.card.accuracy == {"test": found.share}
    assert exported.result.winners[0].accuracy == exported.card.accuracy
    assert plain[1].subnets[0].accuracy == {"test": accuracy(made.net, made.net.max_config, made.images).share}
    assert exported.result.subnets[1].accuracy == plain[1].subnets[1].accuracy


def test_latencies_include_the_alignment(made: Made, exported: ExportedAdapted) -> None:
    keys = {line["key"] for line in read_lines(exported.out / MEASURED_FILE)}
    assert (f"{exported.card.digest} {ALIGNED}" in keys) is exported.aligns
    assert exported.result.subnets[1].digest in keys
    config = made.net.max_config
    tensors = {} if exported.subnet.alignment is None else exported.subnet.alignment.tensors()
    timed = onnx.load_from_string(Subject("", made.net, config, statistics=tensors).model(weights=False))
    file = onnx.load(exported.out / f"{exported.card.digest}.onnx")
    found = [Counter(node.op_type for node in model.graph.node) for model in (timed, file)]
    assert found[0] - Counter(ConstantOfShape=found[0]["ConstantOfShape"]) == found[1]
    assert found[1]["Log"] == 2 * exported.aligns  # of details, and of what is coarser


@pytest.mark.parametrize("method", ["statistics", "tent"])
def test_the_run_time_serves_the_adapted_subnet_and_can_adapt_it_further(
    made: Made, exported: ExportedAdapted, method: WeightMethod
) -> None:
    options, x = WeightOptions(method=method), (images_of(made, exported.card, 16) + 0.8).numpy()
    with adaptive_runtime.load(exported.out / "bundle", weights=options) as model:
        assert max(adaptive_runtime.check(model).values()) <= TOLERANCE
        model.use(exported.card.digest)
        served = model.infer(x).logits
        assert difference(served, torch_answers(exported.subnet, torch.from_numpy(x))) <= TOLERANCE
    with adaptive_runtime.load(exported.out / "bundle") as model:  # nothing else adapts its weights meanwhile
        model.use(exported.card.digest)
        further = AdaptedSubnet(model.pool, exported.card.digest, options, None)
        further.weights.adapt(x)
        expected = further.weights.look(x).logits_BK
        further.weights.example = x[:1], expected[:1]
        further.serve_adapted()
        assert difference(model.infer(x).logits, expected) <= TOLERANCE
        assert difference(served, expected) > TOLERANCE


def test_a_side_file_of_a_guarded_subnet_that_aligned_is_exported(made: Made, tmp_path: Path) -> None:
    net, config, file = made.net, made.net.max_config, tmp_path / "guarded.safetensors"
    x_parts, y_parts = zip(*made.images.batches((16, 16)), strict=True)
    x, y = torch.cat(x_parts), torch.cat(y_parts)
    source = AdaptiveSubnet.of(net, config, statistics_of(net, config, made.images))
    guard = GuardedSubnet(source, Anchor(x[:64], y[:64]), [x[64:]])
    hazy = 0.3 * x + 1.5
    for x_BCHW in hazy.split(16):
        guard.answer(x_BCHW)
    assert guard.answering.alignment is not None
    save_adapted(file, guard.answering, net, config)
    adapted = winners_of(made, read_side_files([file]))
    assert adapted[net.space.digest(config)].described.input_deviations == 1.0
    net.export(config, tmp_path / "own.onnx", statistics=own_tensors(net, config, made.images, adapted))
    found = onnx_answers(tmp_path / "own.onnx", hazy[:5])
    assert difference(found, torch_answers(guard.answering, hazy[:5])) <= TOLERANCE
    assert difference(found, torch_answers(guard.source, hazy[:5])) > TOLERANCE


def winners_of(made: Made, files: Mapping[str, Any], elsewhere: tuple[str, ...] = ()) -> Any:
    front = read_front(made.folder / "search" / FRONT_FILE)
    return adapted_winners(files, made.net, front.winners, elsewhere, made.images)


@pytest.fixture
def stranger(made: Made, tmp_path: Path) -> tuple[Path, str]:
    """The side file of a SubNet that is no winner, and its digest."""
    net = made.net
    config = net.space.canonical({**net.max_config, "resolution": 8})
    return made.side_file(config, "batchnorm").rename(tmp_path / "stranger.safetensors"), net.space.digest(config)


def test_a_side_file_of_no_winner_is_refused_before_anything_is_measured(
    made: Made, stranger: tuple[Path, str]
) -> None:
    file, digest = stranger
    smallest = made.net.space.digest(made.net.min_config)
    line = rf"export\.adapted: side file '.*': it belongs to SubNet {digest}, which is no winner; "
    line += rf"allowed: side files of .*, {smallest} \(1e\+06 ms\); leave it out, or adapt a winner"
    with pytest.raises(UserError, match=line):
        made.run("refused", adapted=(file,))
    assert not list((made.folder / "refused").iterdir())


def test_a_side_file_of_another_devices_winner_is_left_to_that_device(made: Made, stranger: tuple[Path, str]) -> None:
    file, digest = stranger
    assert winners_of(made, read_side_files([file]), (digest,)) == {}


def test_a_side_file_of_another_supernet_or_other_statistics_is_refused(made: Made, tmp_path: Path) -> None:
    net, config, file = made.net, made.net.min_config, tmp_path / "other.safetensors"
    save_adapted(file, AdaptiveSubnet.of(net, config), net, config)
    with pytest.raises(UserError, match=r"it belongs to the SubNet with the BatchNorm statistics .*; allowed: "):
        winners_of(made, read_side_files([file]))
    with torch.no_grad():
        next(iter(net.elastic.parameters())).add_(1)
    save_adapted(file, AdaptiveSubnet.of(net, config), net, config)
    with pytest.raises(UserError, match=r"it belongs to the SuperNet .*; allowed: .*; load the side file of this"):
        winners_of(made, read_side_files([file]))


def test_files_that_no_export_takes_are_one_line(made: Made, tmp_path: Path) -> None:
    net, config, file = made.net, made.net.min_config, tmp_path / "file.safetensors"
    with pytest.raises(ValueError, match=r"adapted\n.*file.safetensors' does not exist; allowed: side files"):
        export.Settings(adapted=(file,))
    file.write_bytes(made.side_file(config, "batchnorm").read_bytes()[:-10])
    with pytest.raises(UserError, match=r"side file '.*': cannot be read .*; adapt the SubNet again"):
        read_side_files([file])
    subnet = AdaptiveSubnet.of(net, config, statistics_of(net, config, made.images))
    save_adapted(file, subnet, net, config)
    with pytest.raises(UserError, match=f"is of SubNet {net.space.digest(config)}, as '.*'; allowed: one file for"):
        read_side_files([file, file])


def test_a_tensor_that_two_layers_have_differently_is_refused(made: Made, tmp_path: Path) -> None:
    class Twice(nn.Module):
        """One block at two places."""

        def __init__(self) -> None:
            super().__init__()
            self.stem, self.block = nn.Conv2d(3, 16, 3), inverted(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(torch.relu(self.block(torch.relu(self.stem(x))))).mean((2, 3))

    torch.manual_seed(0)
    net = tailor_ir.compile(Twice().eval(), torch.zeros(1, 3, 16, 16))
    subnet = AdaptiveSubnet.of(net, net.max_config, statistics_of(net, net.max_config, made.images))
    with torch.no_grad():
        subnet.affine()[0].add_(1)
    save_adapted(tmp_path / "file", subnet, net, net.max_config)
    front = write_front(tmp_path, net, [(net.max_config, 1e6)])
    with pytest.raises(UserError, match="is no tensor of its own in exported files; allowed: tensors that one layer"):
        adapted_winners(read_side_files([tmp_path / "file"]), net, front.winners, (), made.images)
