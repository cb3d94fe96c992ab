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
from tests.support.flows.bundled import check_subnets
from tests.support.flows.fixtures import Command
from tests.support.flows.text_run import LENGTH, SHORTER
from tests.support.runtime.fixtures import LocalServed, served_locally
from tests.support.runtime.service_process import INFER, body, error_of, logits_of

TEXTS = ["The soup was not good, and the bed was dirty.", "", "xyzzy " * 40]
Run = tuple[dict[str, Any], Command]


@pytest.fixture(scope="module")
def bundle(text_run: Run) -> OpenBundle:
    return OpenBundle.open(text_run[1].output / "exports" / "onnxruntime" / "bundle")


@pytest.fixture(scope="module")
def local(bundle: OpenBundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServed]:
    """The bundle while it is served."""
    with served_locally(bundle.folder, tmp_path_factory.mktemp("log")) as one:
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


def test_a_service_answers_numbers_of_words_as_torch_by_its_port_and_by_its_socket(
    text_run: Run, bundle: OpenBundle, local: LocalServed
) -> None:
    vocabulary = bundle.vocabulary()
    assert vocabulary is not None
    x_NT = vocabulary.tokens(TEXTS, LENGTH)
    wanted = expected(text_run[1].output, bundle, x_NT)
    with local.client() as client:
        logits, parameters = logits_of(local.service.http, x_NT)
        np.testing.assert_allclose(logits, wanted[parameters["subnet"]], atol=1e-4)
        for digest, logits_NK in wanted.items():
            logits, parameters = logits_of(client, x_NT, subnet=digest)
            assert parameters["subnet"] == digest
            np.testing.assert_allclose(logits, logits_NK, atol=1e-4)
        for x, line in (
            (
                np.full_like(x_NT, vocabulary.size),
                f"numbers of words from .*; allowed: from 0, below {vocabulary.size}",
            ),
            (x_NT[:, :-1], rf"shape \[3, {LENGTH - 1}\]; allowed: \[N, {LENGTH}\]"),
            (x_NT.astype(np.float32), "datatype FP32; allowed: INT64"),
        ):
            response = client.post(INFER, **body(x))
            assert response.status_code == 400
            assert re.search(line, error_of(response)), error_of(response)


def test_stress_refuses_texts_in_one_line(text_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stress", "onnxruntime", f"output_dir={text_run[1].output}"]) == 2
    assert "is of texts; stress asks with images; serve it: " in capsys.readouterr().err
