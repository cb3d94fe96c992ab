"""Winners that pass exits are exported as chains; the runner on the device gives torch's answers, and leaves by thresholds."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import tailor_ir
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.bundle.chains import SEGMENTS_FILE, ChainManifest, ExitChain
from adaptive_runtime.exits import Decider, Thresholds
from profiling_agents.client import AgentClient, MeasureSettings, local_agent
from tailor_ir.spaces.selectors import SpaceSpec
from tasks import export
from tasks.base.artifacts import Workspace
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.base.schemas.exports import Card, Exports
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData
from tasks.exits.policies import MeasuredExit, SubnetPolicy
from tasks.export.chain_files import chain_statistics
from tests.support.fronts import write_front
from tests.support.ir.networks import small_net

QUICK = MeasureSettings(time_cap_ms=10.0, warmup_ms=1.0, min_blocks=2, patience=0.0)
SPACE: SpaceSpec = {"*.width_mult": [0.5, 1], "*.expand_ratio": [1, 2], "exits": ["stage.1.block.*"]}
IMAGES = 24


class Exported(NamedTuple):
    """What the stage wrote for two SubNets on one device, and torch's answers for some images: (E, N, K) of each."""

    folder: Path
    cards: tuple[Card, ...]
    x: np.ndarray
    answers: tuple[np.ndarray, ...]
    native: str


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a SuperNet of a small residual network with three exits."""
    folder = tmp_path_factory.mktemp("net") / "supernet"
    network = small_net(blocks=3)
    network.classifier = nn.Linear(network.classifier.in_features, 10)
    tailor_ir.compile(network, torch.randn(1, 3, 16, 16), SPACE).save(folder)
    return folder


@pytest.fixture(scope="module")
def images() -> EvaluationData:
    splits = load_splits(DataSettings(kind="digits", resolution=16))
    return EvaluationData(splits["test"], splits["train"], recalibration_images=64, limit=50)


def exported_on(
    client: AgentClient,
    supernet: Path,
    images: EvaluationData,
    folder: Path,
    policies: Sequence[SubnetPolicy] = (),
    **settings: Any,
) -> Exported:
    net = tailor_ir.load(supernet)
    search, out = folder / "search", folder / "out"
    search.mkdir()
    out.mkdir()
    small = net.space.canonical({**net.min_config, "exit": "stage.1.block.2"})
    write_front(search, net, [(net.max_config, 1e6), (small, 1e6)])
    chosen = export.Settings.model_validate({"measure": QUICK, **settings})
    with client.lease():
        result = export.run(
            export.ExportRequest(
                settings=chosen, supernet=supernet, search=search, data={"test": images}, policies=policies
            ),
            client,
            Workspace(out=out, progress=Silent()),
        )
    cards = Exports.model_validate(result).subnets
    x = next(iter(images.batches((16, 16))))[0][:IMAGES]
    answers = []
    for card in cards:
        segments = net.segments(card.config, chain_statistics(net, card.config, net.exits(card.config), images))
        values = {segments[0].inputs[0]: x}
        with torch.inference_mode():
            answers.append(np.stack([segment(values).numpy() for segment in segments]))
    native = client.capabilities().formats[0]
    return Exported(out, cards, x.numpy(), tuple(answers), native)


@pytest.fixture(scope="module", params=["onnxruntime", "ncnn"])
def exported(
    request: pytest.FixtureRequest, net: Path, images: EvaluationData, tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    with local_agent(request.param) as client:
        return exported_on(client, net, images, tmp_path_factory.mktemp(request.param))


def chains(made: Exported) -> Iterator[tuple[Path, Card, np.ndarray]]:
    for card, answers in zip(made.cards, made.answers, strict=True):
        for name in ("onnx", "ncnn"):
            yield made.folder / f"{card.digest}.{name}.segments", card, answers


def median_sureness(logits_NK: np.ndarray) -> float:
    """A threshold that half of the samples reach, between two of them."""
    sureness = np.sort(1 / np.exp(logits_NK - logits_NK.max(-1, keepdims=True)).sum(-1))
    return float(sureness[IMAGES // 2 - 1 : IMAGES // 2 + 1].mean())


def test_each_chain_is_checked_and_timed_on_the_device(exported: Exported) -> None:
    for card in exported.cards:
        for name in ("onnx", "ncnn"):
            file = card.files[f"{name}_segments"]
            assert file.state == "ok", file.reason
            assert file.relative_difference is not None
            assert file.relative_difference <= 1e-4
            assert file.on_device == (name == exported.native)
            assert [one.exit for one in file.segments][-1] == card.config["exit"]
            assert all((one.latency_ms is not None) == file.on_device for one in file.segments)
            assert all(one.macs > 0 for one in file.segments)


def test_the_manifest_tells_what_a_host_program_needs(exported: Exported) -> None:
    for folder, card, answers in chains(exported):
        manifest = ChainManifest.read(folder / SEGMENTS_FILE)
        assert len(manifest.segments) == len(answers)
        assert manifest.preparation is not None
        assert {**manifest.preparation.model_dump(mode="json"), "layout": None} == {
            **card.preparation.model_dump(mode="json", exclude_unset=True),
            "layout": None,
        }
        assert manifest.classes == card.classes
        assert manifest.input.shape == card.input_shape
        assert {*manifest.files, SEGMENTS_FILE} == {file.name for file in folder.iterdir()}
        assert all(segment.outputs[0].shape == (1, answers.shape[-1]) for segment in manifest.segments)
        assert manifest.thresholds is None
        file = card.files[f"{manifest.format}_segments"]
        assert [one.latency_ms for one in manifest.segments] == [one.latency_ms for one in file.segments]
        assert manifest.settings == (file.run.settings if file.run else None)


def test_the_runner_gives_torchs_answers_at_the_last_exit(exported: Exported) -> None:
    for folder, _, answers in chains(exported):
        with ExitChain.open(folder) as chain:
            found = chain.infer(exported.x)
            one = chain.infer(exported.x[:1])
        assert found.answers.tolist() == answers[-1].argmax(-1).tolist()
        assert set(found.exits) == {len(answers) - 1}
        assert (one.answers[0], one.exits[0]) == (found.answers[0], found.exits[0])


def test_runs_at_once_have_memory_of_their_own(exported: Exported) -> None:
    for folder, _, answers in chains(exported):
        with ExitChain.open(folder) as chain:
            runs = [chain.runtime.start(exported.x[at : at + 1]) for at in (0, 1)]
            found_En = [[run.next()[0] for run in runs] for _ in chain.manifest.segments]
            del runs
            again = chain.runtime.start(exported.x[2:3])
            found_En[0].append(again.next()[0])
            with ThreadPoolExecutor(4) as pool:
                at_once = list(pool.map(lambda at: chain.infer(exported.x[at : at + 1]).logits[0], range(IMAGES)))
        every = [np.array(found_n) for found_n in (*found_En, at_once)]
        for got, expected in zip(every, (*answers, answers[-1]), strict=True):
            assert np.abs(got - expected[: len(got)]).max() <= 1e-4 * np.abs(answers).max()


def test_samples_leave_where_their_torch_logits_say(exported: Exported) -> None:
    for folder, _, answers in chains(exported):
        bars = (median_sureness(answers[0]), *[0.3] * (len(answers) - 2))
        thresholds = Thresholds(measure="top_probability", thresholds=bars)
        expected = Decider(thresholds).batch(IMAGES)
        for logits in answers:
            if len(expected.rows):
                expected.leave(logits[expected.rows])
        assert 0 < (expected.exits == 0).sum() < IMAGES
        with ExitChain.open(folder, thresholds) as chain:
            found = chain.infer(exported.x)
        assert found.exits.tolist() == expected.exits.tolist()
        assert found.answers.tolist() == expected.answers.tolist()
        assert np.abs(found.confidences - expected.confidences).max() <= 1e-3


def test_thresholds_beside_the_manifest_are_found(exported: Exported, tmp_path: Path) -> None:
    for at, (folder, _, answers) in enumerate(chains(exported)):
        copy = Path(shutil.copytree(folder, tmp_path / str(at)))
        thresholds = Thresholds(measure="margin", thresholds=(0.0, *[None] * (len(answers) - 2)))
        (copy / "thresholds.json").write_text(thresholds.to_json())
        manifest = ChainManifest.read(copy / SEGMENTS_FILE).model_copy(update={"thresholds": "thresholds.json"})
        (copy / SEGMENTS_FILE).write_text(manifest.to_json())
        with ExitChain.open(copy) as chain:
            found = chain.infer(exported.x)
        assert set(found.exits) == {0}
        assert found.answers.tolist() == answers[0].argmax(-1).tolist()


def with_policy(
    client: AgentClient, supernet: Path, images: EvaluationData, folder: Path, full_exit: int
) -> tuple[Exported, float]:
    """The largest SubNet with thresholds up to a full answer, and the bar of its first exit, where half of the images leave."""
    (folder / "plain").mkdir()
    plain = exported_on(client, supernet, images, folder / "plain", segments=False, formats=["onnx"])
    (card, *_), bar = plain.cards, median_sureness(plain.answers[0][0])
    thresholds = Thresholds(measure="top_probability", thresholds=(bar, *[None] * (full_exit - 1)))
    rows = tuple(
        MeasuredExit(
            exit=name, alone_ms=1.0, latency_ms=1.0, accuracy={}, share=0.5 if place in (0, full_exit) else 0.0
        )
        for place, name in enumerate(tailor_ir.load(supernet).exits(card.config))
    )
    written = thresholds.model_dump(mode="json")
    policy = SubnetPolicy(digest=card.digest, config=card.config, exits=rows, thresholds=written)
    return exported_on(client, supernet, images, folder, policies=[policy], bundle=True), bar


@pytest.mark.few(1)
@pytest.mark.parametrize("full_exit", [1, 2])
def test_a_chain_with_thresholds_has_the_heads_alone_that_they_need(
    net: Path, images: EvaluationData, tmp_path: Path, full_exit: int
) -> None:
    with local_agent("onnxruntime") as client:
        made, bar = with_policy(client, net, images, tmp_path, full_exit)
    (card, other), answers = made.cards, made.answers[0]
    sure = 1 / np.exp(answers[0] - answers[0].max(-1, keepdims=True)).sum(-1) >= bar
    expected = np.where(sure, answers[0].argmax(-1), answers[full_exit].argmax(-1)).tolist()
    for name in ("onnx", "ncnn"):
        file, folder = card.files[f"{name}_segments"], made.folder / f"{card.digest}.{name}.segments"
        assert file.state == "ok", file.reason
        assert [one.exit for one in file.segments] == ["stage.1.block.1", ("stage.1.block.2", "last")[full_exit - 1]]
        assert f"{folder.name}/thresholds.json" in file.sha256
        with ExitChain.open(folder) as chain:
            found = chain.infer(made.x)
        assert found.answers.tolist() == expected
        assert found.exits.tolist() == (~sure).astype(int).tolist()
        if file.on_device:
            first, second = (one.latency_ms or 0 for one in file.segments)
            assert file.expected_ms == pytest.approx(first + 0.5 * second)
            assert f"take {file.expected_ms:.4g} ms on average" in (made.folder / f"{card.digest}.md").read_text()
    with ExitChain.open(made.folder / "bundle", manifest=f"{card.digest}.segments.json") as chain:
        assert chain.infer(made.x).answers.tolist() == expected
    plain = ChainManifest.read(made.folder / f"{other.digest}.onnx.segments" / SEGMENTS_FILE)
    assert plain.thresholds is None
    assert plain.exits == ("stage.1.block.1", "stage.1.block.2")


def test_files_of_any_batch_and_of_a_fixed_one_leave_sample_by_sample(
    net: Path, images: EvaluationData, tmp_path: Path
) -> None:
    with local_agent("onnxruntime") as client:
        made = exported_on(client, net, images, tmp_path, dynamic_batch=True, formats=["onnx"])
    card, answers = made.cards[0], made.answers[0]
    thresholds = Thresholds(measure="top_probability", thresholds=(median_sureness(answers[0]), 0.0))
    expected = Decider(thresholds).batch(IMAGES)
    for logits in answers:
        expected.leave(logits[expected.rows])
    assert len(set(expected.exits)) > 1
    with ExitChain.open(made.folder / f"{card.digest}.onnx.segments", thresholds) as chain:
        assert chain.manifest.input.shape[0] is None
        assert chain.infer(made.x).exits.tolist() == expected.exits.tolist()
        assert chain.infer(made.x[:1]).exits.tolist() == expected.exits[:1].tolist()


def test_the_bundle_has_the_chains_with_its_weights_once(net: Path, images: EvaluationData, tmp_path: Path) -> None:
    with local_agent("onnxruntime") as client:
        made = exported_on(client, net, images, tmp_path, bundle=True, formats=["onnx"])
    bundle = made.folder / "bundle"
    rows = OpenBundle.open(bundle).manifest.subnets
    for row, answers in zip(rows, made.answers, strict=True):
        own = row.nets["onnx"]
        assert own.chain == f"{row.digest}.segments.json"
        assert own.relative_difference <= 1e-4
        with ExitChain.open(bundle, manifest=own.chain) as chain:
            assert chain.infer(made.x).answers.tolist() == answers[-1].argmax(-1).tolist()
        bars = (0.0, *[None] * (len(answers) - 2))
        with ExitChain.open(bundle, Thresholds(measure="margin", thresholds=bars), own.chain) as chain:
            assert chain.infer(made.x).answers.tolist() == answers[0].argmax(-1).tolist()
    weights = (bundle / "weights.safetensors").stat().st_size
    alone = sum(file.stat().st_size for folder in made.folder.glob("*.segments") for file in folder.glob("*.onnx"))
    assert weights < 0.75 * alone


def test_chains_follow_their_files_to_readable_names(exported: Exported, tmp_path: Path) -> None:
    export.write_readable(exported.folder, tmp_path / "board")
    index = json.loads((tmp_path / "board" / "index.json").read_text())
    names = [name for name in index["winners"][0]["files"] if name.endswith(SEGMENTS_FILE)]
    assert len(names) == 2
    for name in names:
        with ExitChain.open((tmp_path / "board" / name).parent) as chain:
            assert chain.infer(exported.x).answers.tolist() == exported.answers[0][-1].argmax(-1).tolist()
    export.write_readable(exported.folder, tmp_path / "board")
    assert not list((tmp_path / "board").rglob("*.kept-*"))


def test_the_card_lists_the_segments(exported: Exported) -> None:
    for card in exported.cards:
        text = (exported.folder / f"{card.digest}.md").read_text()
        assert "## Exits" in text
        for segment in card.files["onnx_segments"].segments:
            assert f"| {segment.exit} |" in text


def test_chains_are_left_out_where_they_are_not_wanted(net: Path, images: EvaluationData, tmp_path: Path) -> None:
    with local_agent("onnxruntime") as client:
        made = exported_on(client, net, images, tmp_path, segments=False, formats=["onnx"])
    assert all(card.files.keys() == {"onnx"} for card in made.cards)
    assert not list(made.folder.glob("*.segments"))


def test_chains_of_a_space_without_exits_are_refused_in_one_line(
    supernet: Path, images: EvaluationData, tmp_path: Path
) -> None:
    write_front(tmp_path, plain := tailor_ir.load(supernet), [(plain.max_config, 1e6)])
    with (
        local_agent("onnxruntime") as client,
        pytest.raises(UserError, match=r"export\.segments: true, but the space has no exits; allowed: auto, false; .*"),
    ):
        export.run(
            export.ExportRequest(
                settings=export.Settings(segments=True), supernet=supernet, search=tmp_path, data={"test": images}
            ),
            client,
            Workspace(out=tmp_path / "out", progress=Silent()),
        )


BROKEN: Mapping[str, tuple[Any, str]] = {
    "newer": ({"version": 2}, r"has version 2, of a later autotailor; allowed: 1; update autotailor here"),
    "foreign": ({"version": None}, r"has no version; allowed: 1; export the SubNet again"),
    "unknown field": ({"colour": "red"}, r"colour: Extra inputs are not permitted; export the SubNet again"),
    "a path": ({"thresholds": "../t.json"}, r"thresholds: String should match pattern"),
    "a hole": ({"input": {"name": "x", "shape": [1]}}, r"segment 0 reads '.*', which none before it gives"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_another_manifest_is_refused_in_one_line(exported: Exported, case: str, tmp_path: Path) -> None:
    change, line = BROKEN[case]
    folder = next(chains(exported))[0]
    content = {**json.loads((folder / SEGMENTS_FILE).read_text()), **change}
    content = {name: value for name, value in content.items() if (name, value) != ("version", None)}
    (tmp_path / SEGMENTS_FILE).write_text(json.dumps(content))
    with pytest.raises(AdaptiveError, match=line):
        ExitChain.open(tmp_path)


def test_damage_is_told_in_one_line(exported: Exported, tmp_path: Path) -> None:
    folder = next(chains(exported))[0]
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / "1.onnx").write_bytes((copy / "0.onnx").read_bytes())
    with pytest.raises(AdaptiveError, match=r"1\.onnx: is not the file that segments\.json names; export the SubNet"):
        ExitChain.open(copy)
    (copy / "1.onnx").unlink()
    with pytest.raises(AdaptiveError, match=r"1\.onnx: cannot be read \(No such file or directory\)"):
        ExitChain.open(copy)
    (copy / SEGMENTS_FILE).write_text("{")
    with pytest.raises(AdaptiveError, match=r"segments\.json: is no JSON"):
        ExitChain.open(copy)


def test_inputs_and_thresholds_that_do_not_fit_are_one_line(exported: Exported) -> None:
    for folder, _, answers in chains(exported):
        with ExitChain.open(folder) as chain:
            wrongs: list[Any] = [exported.x[:, :, 1:], exported.x.astype(np.float64), exported.x[:0]]
            for wrong in wrongs:
                with pytest.raises(
                    AdaptiveError, match=r"input: float\d+ \(.*\); allowed: float32 \(N, 3, 16, 16\), N"
                ):
                    chain.infer(wrong)
        many = Thresholds(measure="margin", thresholds=(0.5,) * len(answers))
        with pytest.raises(AdaptiveError, match=r"thresholds: \d thresholds for \d exits; allowed: at most \d; make"):
            ExitChain.open(folder, many)
