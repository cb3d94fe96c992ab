"""A deployed bundle: every answer is of the SubNet that it names, while SubNets are swapped, fail, and lose files."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

import adaptive_runtime
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.exits import Decider
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.pool import Variant
from adaptive_runtime.pool.prepared import PreparedFiles
from adaptive_runtime.pool.preparing import PreparationOrder
from adaptive_runtime.pool.variants import BILINEAR, scaling
from tests.support import examples
from tests.support.runtime import deployed
from tests.support.runtime.deployed import IMAGES, TOLERANCE, Written, differs

model = deployed.model
written = deployed.written


@pytest.fixture
def copy(written: Written, tmp_path: Path) -> Written:
    """A bundle of one's own, to damage."""
    return written._replace(
        folder=Path(shutil.copytree(written.folder, tmp_path / "bundle", ignore=shutil.ignore_patterns("prepared")))
    )


def test_every_subnet_and_every_exit_answers_as_its_own_file(written: Written, model: DeployedModel) -> None:
    assert len(written.answers) > 2 * len(written.digests)
    for (digest, exit), expected in written.answers.items():
        model.use(digest, exit)
        found = model.infer(written.x)
        assert differs(found.logits, expected) <= TOLERANCE
        assert found.classes.tolist() == expected.argmax(-1).tolist()
        assert found.subnet == digest
        assert set(found.exits) == {exit or written.manifest.by_digest[digest].config["exit"]}
        assert found.latency_ms > 0
    assert model.state.requests == len(written.answers)


def test_samples_leave_by_the_thresholds_of_the_bundle(written: Written, model: DeployedModel) -> None:
    subnet = next(one for one in written.manifest.subnets if one.thresholds is not None)
    assert subnet.thresholds is not None
    expected = Decider(subnet.thresholds).batch(IMAGES)
    for exit in subnet.exits:
        if len(expected.rows):
            expected.leave(written.answers[subnet.digest, exit.exit][expected.rows])
    assert len(set(expected.exits)) > 1
    model.use(subnet.digest, early=True)
    found = model.infer(written.x)
    assert found.exits == tuple(subnet.exits[place].exit for place in expected.exits)
    assert found.classes.tolist() == expected.answers.tolist()
    assert np.abs(found.confidence - expected.confidences).max() <= 1e-3


@pytest.mark.long
def test_of_a_chain_the_segments_alone_are_loaded_that_a_request_needs(written: Written) -> None:
    subnet = next(one for one in written.manifest.subnets if one.thresholds is not None)
    with adaptive_runtime.load(written.folder) as model:
        model.use(subnet.digest, subnet.exits[0].exit)
        assert f"{subnet.digest}.0.onnx" in model.pool.loaded
        assert f"{subnet.digest}.1.onnx" not in model.pool.loaded
        model.infer(written.x)
        assert f"{subnet.digest}.1.onnx" not in model.pool.loaded
    with adaptive_runtime.load(written.folder, memory_mib=0.01) as model:  # no room for anything ahead
        model.use(subnet.digest, early=True)
        assert model.pool.loaded == (f"{subnet.digest}.0.onnx",)
        found = model.infer(written.x)
        assert set(model.pool.loaded) == {f"{subnet.digest}.{at}.onnx" for at in range(len(subnet.exits))}
        assert len(set(found.exits)) > 1


def test_a_chooser_is_asked_before_each_request(written: Written) -> None:
    asked: list[adaptive_runtime.ModelState] = []

    def chooser(state: adaptive_runtime.ModelState) -> Variant | None:
        asked.append(state)
        return Variant(written.digests[len(asked) % 3])

    with adaptive_runtime.load(written.folder, chooser=chooser) as model:
        for digest in written.digests:
            model.use(digest)
        answers = [model.infer(written.x) for _ in range(6)]
    assert [answer.subnet for answer in answers] == [written.digests[number % 3] for number in range(1, 7)]
    assert [state.requests for state in asked] == list(range(6))


def test_the_most_accurate_subnet_within_the_budget_serves_first(written: Written) -> None:
    slowest, fastest = written.manifest.subnets[0], written.manifest.subnets[-1]
    for budget_ms, first in (
        (None, slowest),
        (slowest.likely_ms, slowest),
        (fastest.likely_ms, fastest),
        (1.0, fastest),
    ):
        with adaptive_runtime.load(written.folder, budget_ms) as model:
            assert model.state.serving == Variant(first.digest)


def test_a_file_that_is_gone_takes_out_what_is_not_loaded_yet(copy: Written, caplog: pytest.LogCaptureFixture) -> None:
    first, second, third = copy.digests
    with adaptive_runtime.load(copy.folder, prepares=False) as model:
        (copy.folder / f"{first}.onnx").unlink()
        (copy.folder / f"{second}.onnx").unlink()
        assert model.infer(copy.x).subnet == first
        with pytest.raises(AdaptiveError, match=rf"SubNet {second}: was taken out: .*{second}\.onnx: cannot be read"):
            model.use(second)
        assert model.infer(copy.x).subnet == first
        model.use(third)
        assert model.infer(copy.x).subnet == third
        assert list(model.state.taken_out) == [second]
        assert {one.digest for one in model.subnets} == {first, third}
    assert [f"SubNet {second} is taken out" in line for line in caplog.messages] == [True]


def test_a_subnet_that_fails_while_it_serves_is_replaced_within_the_request(
    written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def io_binding(self) -> Any:
            raise RuntimeError("the kernel has crashed\nin two lines")

    first, second, _ = written.digests
    with adaptive_runtime.load(written.folder) as model:
        (part,) = model.pool.answerer(Variant(first)).parts
        part.value = Broken()
        found = model.infer(written.x)
        assert found.subnet == second
        assert differs(found.logits, written.answers[second, None]) <= TOLERANCE
        assert model.state.taken_out == {first: "RuntimeError: the kernel has crashed in two lines"}
        with pytest.raises(AdaptiveError, match="was taken out: RuntimeError: the kernel has crashed in two lines"):
            model.use(first)
        assert model.infer(written.x).subnet == second
    assert len(caplog.messages) == 1


def test_where_no_subnet_works_the_request_is_one_clear_line(copy: Written) -> None:
    for digest in copy.digests:
        (copy.folder / f"{digest}.onnx").write_bytes(b"x" * (copy.folder / f"{digest}.onnx").stat().st_size)
    with pytest.raises(
        AdaptiveError, match=r"no SubNet works; the last one: .*is not the file that bundle\.json names"
    ):
        adaptive_runtime.load(copy.folder)


@pytest.mark.long
def test_damaged_prepared_files_are_made_anew(copy: Written, caplog: pytest.LogCaptureFixture) -> None:
    with adaptive_runtime.load(copy.folder) as model:
        model.infer(copy.x)
        model.pool.finish_preparing()
    places = list((copy.folder / "prepared").rglob("model.onnx"))
    assert places
    for file in places:
        file.write_bytes(b"nothing")
    with adaptive_runtime.load(copy.folder) as model:
        for digest in copy.digests:
            model.use(digest)
            assert differs(model.infer(copy.x).logits, copy.answers[digest, None]) <= TOLERANCE
        model.pool.finish_preparing()
        for file in (copy.folder / "prepared").glob("*/model.onnx"):
            file.unlink()
        model.pool.free(model.pool.answerer(Variant(digest)))
        assert differs(model.infer(copy.x).logits, copy.answers[digest, None]) <= TOLERANCE
    assert "its prepared form does not load" in caplog.messages[-1]


def test_where_nothing_can_be_prepared_files_are_loaded_as_they_are(
    written: Written, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with adaptive_runtime.load(written.folder, cache=tmp_path / "file") as model:
        digest = model.state.serving.digest
        assert differs(model.infer(written.x).logits, written.answers[digest, None]) <= TOLERANCE
        model.pool.finish_preparing()
    assert "cannot be written" in caplog.messages[0]
    assert len(caplog.messages) == 1


def test_requests_are_answered_by_the_files_while_they_are_prepared(
    copy: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preparing takes seconds; nobody waits for it, and each part serves from its prepared form from then on."""
    allowed, real = threading.Event(), PreparedFiles._run

    def run(self: PreparedFiles, order: PreparationOrder) -> None:
        assert allowed.wait(60)
        real(self, order)

    monkeypatch.setattr(PreparedFiles, "_run", run)
    with adaptive_runtime.load(copy.folder) as model:
        plain = {}
        for digest in copy.digests:
            model.use(digest)
            assert differs(model.infer(copy.x).logits, copy.answers[digest, None]) <= TOLERANCE
            plain[digest] = model.pool.answerer(Variant(digest)).parts[0].value
        assert not list((copy.folder / "prepared").glob("[!.]*/model.onnx"))
        allowed.set()
        model.pool.finish_preparing()
        assert len(list((copy.folder / "prepared").glob("[!.]*/model.onnx"))) >= len(copy.digests)
        for digest in copy.digests:
            assert model.pool.answerer(Variant(digest)).parts[0].value is not plain[digest]
            model.use(digest)
            assert differs(model.infer(copy.x).logits, copy.answers[digest, None]) <= TOLERANCE


def test_a_model_that_is_closed_leaves_no_child_that_prepares(copy: Written) -> None:
    with adaptive_runtime.load(copy.folder) as model:
        model.infer(copy.x)
    left = [one for one in psutil.Process().children(recursive=True) if "preparing" in " ".join(one.cmdline())]
    assert not left
    assert not list((copy.folder / "prepared").glob(".partial-*"))


WRONG: list[tuple[Callable[[np.ndarray], Any], str]] = [
    (lambda x: x[:, :, 1:], r"input: float32 \(6, 3, 15, 16\); allowed: float32 \(N, 3, 16, 16\), N from 1 on"),
    (lambda x: x.astype(np.float64), r"input: float64 "),
    (lambda x: x[:0], r"input: float32 \(0, "),
]


@pytest.mark.parametrize(("change", "line"), WRONG)
def test_wrong_input_is_one_line_and_takes_nothing_out(
    written: Written, model: DeployedModel, change: Callable[[np.ndarray], Any], line: str
) -> None:
    with pytest.raises(AdaptiveError, match=line):
        model.infer(change(written.x))
    assert not model.state.taken_out


def test_unknown_subnets_and_exits_are_one_line(written: Written, model: DeployedModel) -> None:
    largest, smallest, _ = written.digests
    for wanted, line in (
        ({"digest": "0" * 16}, r"SubNet: '0000000000000000'; allowed: \w+, "),
        (
            {"digest": largest, "exit": "nowhere"},
            rf"SubNet {largest}: no exit 'nowhere'; allowed: stage\.1\.block\.1, ",
        ),
        (
            {"digest": largest, "exit": "last", "early": True},
            r"thresholds and exit 'last'; name an exit, or use the whole",
        ),
        ({"digest": smallest, "early": True}, rf"SubNet {smallest}: has no exits in onnx; use the whole SubNet"),
    ):
        with pytest.raises(AdaptiveError, match=line):
            model.use(**wanted)
    with pytest.raises(AdaptiveError, match=r"has no SubNets in ncnn; allowed: onnx"):
        adaptive_runtime.load(written.folder, format="ncnn")


def test_a_closed_model_says_so(written: Written) -> None:
    model = adaptive_runtime.load(written.folder)
    model.close()
    with pytest.raises(AdaptiveError, match="the model is closed; load it again"):
        model.infer(written.x)


def test_a_model_that_cannot_be_opened_leaves_no_record_open(copy: Written) -> None:
    for digest in copy.digests:
        (copy.folder / f"{digest}.onnx").write_bytes(b"x" * (copy.folder / f"{digest}.onnx").stat().st_size)
    decisions = copy.folder.parent / "decisions.jsonl"
    with pytest.raises(AdaptiveError, match="no SubNet works") as raised:
        adaptive_runtime.load(copy.folder, 1000.0, adapts=adaptive_runtime.AdaptingOptions(decisions=decisions))
    assert decisions.exists()
    assert not any(one.samefile(decisions) for one in Path("/proc/self/fd").iterdir() if one.exists())
    del raised  # with it what the frames of the error hold


def test_what_cannot_be_ended_keeps_nothing_else_open(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    model = adaptive_runtime.load(written.folder, 1000.0, adapts=True)
    assert model.adaptation is not None
    stop = model.adaptation.stop

    def fails() -> None:
        stop()
        raise RuntimeError("cannot be ended")

    monkeypatch.setattr(model.adaptation, "stop", fails)
    model.infer(written.x)
    assert model.pool.loaded
    with pytest.raises(RuntimeError, match="cannot be ended"):
        model.close()
    assert model.pool.loaded == ()


@given(st.integers(4, 40), st.integers(4, 40), st.integers(4, 40), st.integers(4, 40))
@settings(max_examples=examples(30), deadline=None)
def test_images_are_scaled_as_torch_scales_them(height: int, width: int, new_height: int, new_width: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, height, width)).astype(np.float32)
    after = (new_height, new_width)
    scale = scaling((height, width), after, BILINEAR)
    exact = torch.from_numpy(x).double()  # in fp32 torch rounds the places of pixels
    expected = functional.interpolate(exact, size=after, mode="bilinear", antialias=True).numpy()
    got = x if scale is None else scale(x)
    assert np.abs(got - expected).max() <= 2e-6
