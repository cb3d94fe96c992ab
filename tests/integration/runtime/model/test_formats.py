"""A bundle with its SubNets in several formats: one table, one pool, and switches between runtimes."""

import shutil
import sys
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from torch import nn

import adaptive_runtime
import tailor_ir
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, BundleFormat, BundleManifest, OpenBundle
from adaptive_runtime.model.variants import BundleVariants
from adaptive_runtime.pool import Variant
from adaptive_runtime.server.metrics import ServiceMetrics
from adaptive_runtime.server.protocol import InferenceFormat
from adaptive_runtime.server.recent import ChoiceMemory
from adaptive_runtime.server.served import LoadWatch, ServedModel
from tests.support.ir.networks import perturb, small_net
from tests.support.runtime.asking import Answers, answers_while_switched
from tests.support.runtime.bundled import write_plain_bundle
from tests.support.runtime.formats import LOST, SLOWER, answers_in, with_formats

FORMATS: tuple[BundleFormat, ...] = ("onnx", "onnx_int8", "ncnn", "ncnn_bf16")
TOLERANCE = 1e-5
IMAGES = 4
SPACE: dict[str, Any] = {"*.width_mult": [0.5, 1], "exits": ["stage.1.block.*"]}


class Written(NamedTuple):
    """A bundle of two SubNets in four formats, images for it, and what its files answer, by digest and format."""

    folder: Path
    manifest: BundleManifest
    x: np.ndarray
    answers: dict[tuple[str, BundleFormat], np.ndarray]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    torch.manual_seed(0)
    network = small_net(blocks=2)
    network.classifier = nn.Linear(network.classifier.in_features, 10)
    net = tailor_ir.compile(perturb(network), torch.randn(1, 3, 16, 16), SPACE)
    x = np.random.default_rng(0).standard_normal((IMAGES, 3, 16, 16)).astype(np.float32)
    folder = tmp_path_factory.mktemp("bundle") / "bundle"
    plain = write_plain_bundle(net, [net.max_config, net.min_config], folder, samples=2)
    manifest = with_formats(net, plain, folder, x)
    answers = {(one.digest, form): answers_in(one, form, folder, x) for one in manifest.subnets for form in FORMATS}
    return Written(folder, manifest, x, answers)


def differs(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def test_each_subnet_in_each_format_answers_as_its_own_file(written: Written) -> None:
    exact = written.answers[written.manifest.subnets[0].digest, "onnx"]
    for form in FORMATS[1:]:
        assert differs(written.answers[written.manifest.subnets[0].digest, form], exact) > 0
    with adaptive_runtime.load(written.folder, prepares=False) as model:
        assert model.pool.forms == FORMATS
        for (digest, form), expected in written.answers.items():
            model.use(digest, format=form)
            found = model.infer(written.x)
            assert differs(found.logits, expected) <= TOLERANCE
            assert (found.subnets, found.formats) == ((digest,) * IMAGES, (form,) * IMAGES)
            assert model.state.serving == Variant(digest, form=None if form == "onnx" else form)
        assert {one.form for one in model.state.warm} == {None, *FORMATS[1:]}, "standbys of all formats stay warm"
        assert len(adaptive_runtime.check(model)) >= len(written.answers)


def test_no_request_of_three_threads_is_lost_while_formats_are_switched(written: Written) -> None:
    total, threads, switches = 600, 3, 12
    seen, wanted, rng = set[BundleFormat](), list(written.answers), np.random.default_rng(1)
    with adaptive_runtime.load(written.folder, prepares=False) as model:

        def enough(mine: Answers) -> bool:
            seen.update(form for _, answer in mine[-1:] for form in answer.formats)
            return len(mine) >= total // threads and model.state.switches > switches and len(seen) >= len(FORMATS)

        def switch() -> None:
            digest, form = wanted[rng.integers(len(wanted))]
            model.use(digest, format=form, wait=bool(rng.integers(2)))

        answers = answers_while_switched(model, written.x, threads, enough, switch)
        state = model.state
    assert len(answers) == state.requests >= total
    assert not state.taken_out
    for at, answer in answers:
        (form,) = answer.formats
        expected = written.answers[answer.subnet, form]
        assert differs(answer.logits, expected[at : at + 1]) <= TOLERANCE


def test_the_table_has_a_row_for_each_format_with_its_own_figures(written: Written) -> None:
    found = BundleVariants.of(written.manifest, *written.manifest.known_formats)
    rows = dict(zip(found.variants, range(len(found.variants)), strict=True))
    for subnet in written.manifest.subnets:
        for form in FORMATS:
            row = rows[Variant(subnet.digest, form=None if form == "onnx" else form)]
            assert found.table.latency_ms[row] == pytest.approx(SLOWER[form] * subnet.likely_ms)
            assert found.table.accuracy[row] == pytest.approx(subnet.first_accuracy - LOST[form])
    digest = written.manifest.subnets[0].digest
    assert f"{digest} in ncnn_bf16" in found.table.names
    assert BundleVariants.of(written.manifest, "ncnn").variants == tuple(
        Variant(one.digest) for one in written.manifest.subnets
    )


def test_a_model_that_adapts_takes_the_format_that_keeps_the_budget(written: Written) -> None:
    first = written.manifest.subnets[0]
    found = []
    with adaptive_runtime.load(written.folder, 1e5, adapts=True, prepares=False) as model:
        assert model.infer(written.x[:1]).formats
        assert model.adaptation is not None
        for budget_ms in np.geomspace(100.0, 1e5, 80).tolist():
            model.set_limits(budget_ms=budget_ms)
            found.append(model.adaptation.first.form)
    assert [form for form, _ in groupby(found)] == ["onnx_int8", "ncnn_bf16", "ncnn", None]
    with adaptive_runtime.load(written.folder, 450.0, prepares=False) as model:
        assert model.state.serving == Variant(first.digest, form="ncnn_bf16")


def test_a_runtime_that_is_not_installed_leaves_its_formats_out_in_one_line(
    written: Written, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ncnn", None)
    with adaptive_runtime.load(written.folder, prepares=False) as model:
        assert model.pool.forms == ("onnx", "onnx_int8")
        assert differs(model.infer(written.x).logits, written.answers[model.state.serving.digest, "onnx"]) <= TOLERANCE
        with pytest.raises(AdaptiveError, match=r"format 'ncnn'; allowed: onnx, onnx_int8"):
            model.use(model.state.serving.digest, format="ncnn")
    (line,) = caplog.messages
    assert line.startswith("SubNets in ncnn, ncnn_bf16 are left out: ")
    assert line.endswith("needs ncnn, which is not installed; pip install ncnn")
    with pytest.raises(AdaptiveError, match="needs ncnn, which is not installed; pip install ncnn"):
        adaptive_runtime.load(written.folder, format="ncnn_bf16")


def test_a_service_that_starts_again_goes_on_in_the_format_that_served(
    written: Written, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digest = written.manifest.subnets[0].digest
    memory = ChoiceMemory(tmp_path, "0" * 64)
    memory.write(Variant(digest, form="ncnn"))
    first = memory.read()
    with adaptive_runtime.load(written.folder, first=first, prepares=False) as model:
        assert model.state.serving == first
    assert not caplog.messages
    with adaptive_runtime.load(written.folder, format="onnx", first=first, prepares=False) as model:
        assert model.state.serving == Variant(digest)
    (line,) = caplog.messages
    assert line == f"SubNet {digest}: format 'ncnn'; allowed: onnx; what serves first is chosen anew"


def test_metrics_name_the_format_of_what_serves_and_of_what_answered(written: Written) -> None:
    digest = written.manifest.subnets[0].digest
    with adaptive_runtime.load(written.folder, prepares=False) as model, LoadWatch(Path("/")).running() as watch:
        served = ServedModel(
            infer=lambda x_NCHW, until_s, subnet: model.infer(x_NCHW, None, subnet),
            subnets=lambda: (digest,),
            state=lambda: model.state,
            works=lambda: True,
            load=watch,
            format=InferenceFormat.of(model),
            version="0",
        )
        metrics = ServiceMetrics(served, lambda: 0)
        for form in ("onnx", "ncnn"):
            model.use(digest, format=form)
            metrics.observe(served.infer(written.x, 0.0, None), waited_ms=0.0)
            found = by_format(metrics)
            assert found["autotailor_serving"] == {(digest, form): 1.0}
    assert found["autotailor_samples_total"] == {(digest, "onnx"): IMAGES, (digest, "ncnn"): IMAGES}
    assert found["autotailor_latency_seconds_count"] == {(digest, "onnx"): 1.0, (digest, "ncnn"): 1.0}


def by_format(metrics: ServiceMetrics) -> dict[str, dict[tuple[str, str], float]]:
    """What a service tells of SubNets in their formats, by metric."""
    found: dict[str, dict[tuple[str, str], float]] = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for one in family.samples:
            if "format" in one.labels:
                found.setdefault(one.name, {})[one.labels["subnet"], one.labels["format"]] = one.value
    return found


def test_a_format_that_is_asked_for_is_the_only_one(written: Written) -> None:
    with adaptive_runtime.load(written.folder, format="ncnn_bf16") as model:
        digest = model.state.serving.digest
        assert differs(model.infer(written.x).logits, written.answers[digest, "ncnn_bf16"]) <= TOLERANCE
        assert model.state.serving == Variant(digest)
        assert set(model.pool.variants()) == {Variant(one.digest) for one in written.manifest.subnets}
    with pytest.raises(AdaptiveError, match=r"has no SubNets in ncnn_fp16; allowed: onnx, onnx_int8, ncnn, ncnn_bf16"):
        adaptive_runtime.load(written.folder, format="ncnn_fp16")


def test_an_onnx_file_of_which_nothing_is_known_is_left_alone_beside_ncnn(written: Written, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written.folder, tmp_path / "bundle", ignore=shutil.ignore_patterns("prepared")))
    first, second = written.manifest.subnets
    known = {first.digest: first.nets["ncnn"].figures, second.digest: None}
    subnets = [
        one.model_copy(
            update={
                "nets": {
                    "onnx": one.nets["onnx"].model_copy(update={"figures": known[one.digest]}),
                    "ncnn": one.nets["ncnn"].model_copy(update={"figures": None}),
                }
            }
        )
        for one in (first, second)
    ]
    runs = {
        form: written.manifest.runs[form].model_copy(update={"measured": form == "ncnn"}) for form in ("onnx", "ncnn")
    }
    manifest = written.manifest.model_copy(update={"subnets": tuple(subnets), "runs": runs})
    (folder / BUNDLE_FILE).write_text(manifest.to_json())
    with adaptive_runtime.load(folder, prepares=False) as model:
        assert model.pool.forms == ("ncnn", "onnx")
        checked = {variant for variant in adaptive_runtime.check(model) if variant.exit is None}
        assert checked == {Variant(first.digest), Variant(first.digest, form="onnx"), Variant(second.digest)}
        with pytest.raises(AdaptiveError, match=r"format 'onnx'; allowed: ncnn$"):
            model.use(second.digest, format="onnx")


def test_a_subnet_whose_files_of_some_formats_are_damaged_goes_on_in_another(written: Written, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(written.folder, tmp_path / "bundle", ignore=shutil.ignore_patterns("prepared")))
    digest = written.manifest.subnets[0].digest
    for name in (f"{digest}.onnx", f"{digest}.int8.onnx"):
        (folder / name).write_bytes(b"x" * (folder / name).stat().st_size)
    with adaptive_runtime.load(folder, prepares=False) as model:
        assert model.state.serving == Variant(written.manifest.subnets[1].digest)
        alone = model.infer(written.x, subnet=digest)
        assert (alone.subnet, set(alone.formats)) == (digest, {"ncnn"})
        assert differs(alone.logits, written.answers[digest, "ncnn"]) <= TOLERANCE
        assert list(model.state.taken_out) == [digest, f"{digest} in onnx_int8"]
        with pytest.raises(AdaptiveError, match=rf"SubNet {digest} in onnx_int8: was taken out: .*is not the file"):
            model.use(digest, format="onnx_int8")
        assert digest in {one.digest for one in model.subnets}
        model.use(digest, format="ncnn_bf16")
        assert differs(model.infer(written.x).logits, written.answers[digest, "ncnn_bf16"]) <= TOLERANCE


def test_a_bundle_without_figures_of_formats_is_written_as_before(written: Written, tmp_path: Path) -> None:
    assert OpenBundle.open(written.folder).manifest == written.manifest
    assert '"figures"' in written.manifest.to_json()
    nets = {one.digest: {"onnx": one.nets["onnx"]} for one in written.manifest.subnets}
    subnets = [one.model_copy(update={"nets": nets[one.digest]}) for one in written.manifest.subnets]
    plain = written.manifest.model_copy(update={"subnets": tuple(subnets)})
    assert '"figures"' not in plain.to_json()
    assert BundleManifest.from_json(plain.to_json()) == plain
    assert plain.known_formats == ("onnx",)
