"""A small text encoder through the whole pipeline: files by torch, and a bundle that answers numbers of words when served."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import adaptive_runtime
import tailor_ir
from adaptive_runtime.bundle.bundles import OpenBundle
from flows.cli import main
from tests.integration.runtime.server.test_local_socket import by_http
from tests.support.flows.bundled import check_subnets
from tests.support.flows.fixtures import Command
from tests.support.flows.text_run import LENGTH, SHORTER
from tests.support.runtime.c_client import CClient, client_object, client_program, client_source, sanitizer_flags
from tests.support.runtime.fixtures import PATIENT, LocalServed, served_locally

TEXTS = ["The soup was not good, and the bed was dirty.", "", "xyzzy " * 40]
Run = tuple[dict[str, Any], Command]


@pytest.fixture(scope="module")
def bundle(text_run: Run) -> OpenBundle:
    return OpenBundle.open(text_run[1].output / "exports" / "onnxruntime" / "bundle")


@pytest.fixture(scope="module")
def local(bundle: OpenBundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServed]:
    """The bundle while it is served."""
    with served_locally(bundle.folder, tmp_path_factory.mktemp("log"), PATIENT) as one:
        yield one


def expected(folder: Path, bundle: OpenBundle, x_NT: np.ndarray) -> dict[str, np.ndarray]:
    """Logits of each SubNet in torch, by digest, of the run's fine-tuned SuperNet."""
    (finetuned,) = (folder / "stages" / "finetune").iterdir()
    net = tailor_ir.load(finetuned / "supernet")
    found = {}
    for subnet in bundle.manifest.subnets:
        module = net.build(dict(subnet.config)).eval()
        with torch.no_grad():
            found[subnet.digest] = module(torch.from_numpy(x_NT[:, : subnet.input_shape[1]])).numpy()
    return found


def test_a_run_finds_exports_and_checks_subnets_of_texts(text_run: Run, bundle: OpenBundle) -> None:
    report, own = text_run
    (device,) = report["devices"]
    assert report["metric"] == "top-1 accuracy"
    assert len(device["winners"]) == 10
    assert max(row["max_difference"] for row in device["winners"]) < 1e-4
    assert {row["resolution"] for row in device["winners"]} <= {SHORTER, LENGTH}
    assert {row["digest"] for row in device["winners"]} == check_subnets(own.output, "onnxruntime", bundle)
    with adaptive_runtime.load(bundle.folder, prepares=False) as model:
        x_NT = model.tokens(TEXTS)
        for digest, logits_NK in expected(own.output, bundle, x_NT).items():
            model.use(digest)
            np.testing.assert_allclose(model.infer(x_NT).logits, logits_NK, atol=1e-4)


def test_a_service_answers_numbers_of_words_as_torch_by_http_and_by_its_socket(
    text_run: Run, bundle: OpenBundle, local: LocalServed
) -> None:
    vocabulary = bundle.vocabulary()
    assert vocabulary is not None
    x_NT = vocabulary.tokens(TEXTS, LENGTH)
    wanted = expected(text_run[1].output, bundle, x_NT)
    with local.client() as client:
        logits, parameters = by_http(local.http, x_NT)
        np.testing.assert_allclose(logits, wanted[parameters["subnet"]], atol=1e-4)
        for digest, logits_NK in wanted.items():
            answered = client.ask(x_NT, subnet=digest)
            assert answered.subnets == (digest,) * len(TEXTS), answered.line
            np.testing.assert_allclose(answered.logits, logits_NK, atol=1e-4)
        text_of_floats = x_NT[:, :, None, None].astype(np.float32)
        for x, line in (
            (
                np.full_like(x_NT, vocabulary.size),
                f"numbers of words from .*; allowed: from 0, below {vocabulary.size}",
            ),
            (x_NT[:, :-1], rf"shape \[3, {LENGTH - 1}\]; allowed: \[N, {LENGTH}\]"),
            (text_of_floats, f"{4 * x_NT.size} bytes of values; allowed for its shape: {8 * x_NT.size}"),
        ):
            refused = client.ask(x)
            assert refused.status == 400
            assert re.search(line, refused.line), refused.line


def test_the_client_in_c_asks_with_numbers_of_words(
    text_run: Run, bundle: OpenBundle, local: LocalServed, tmp_path: Path
) -> None:
    vocabulary = bundle.vocabulary()
    assert vocabulary is not None
    x_NT = vocabulary.tokens(TEXTS, LENGTH)
    (tmp_path / "texts.i64").write_bytes(x_NT.astype("<i8").tobytes())
    flags, source = sanitizer_flags(tmp_path), client_source(tmp_path)
    program = client_program(source, client_object(source, flags), flags)
    with CClient(program, tmp_path / "texts.i64", LENGTH, 1, 1, "tokens") as client:
        client.connect(local.path)
        found = client.answer(f"infer {len(TEXTS)} 0 -")
    np.testing.assert_allclose(found.logits, expected(text_run[1].output, bundle, x_NT)[found.subnet], atol=1e-4)


def test_stress_refuses_texts_in_one_line(text_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stress", "onnxruntime", f"output_dir={text_run[1].output}"]) == 2
    assert "is of texts; stress asks with images; serve it: " in capsys.readouterr().err
