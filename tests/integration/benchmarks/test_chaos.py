"""Chaos: a client sees no wrong and no lost answer of a service that is killed, and tells both where they are."""

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from adaptive_runtime.bundle.bundles import BUNDLE_FILE, BundleManifest
from benchmarks.chaos import Asked, Supervised, bundle_of
from benchmarks.faults import Fault, failing
from tests.support.runtime.bundled import answers_of_files
from tests.support.runtime.service_process import AUTHORIZATION, images, soon
from tests.support.threads import beside


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "bundle"
    bundle_of(folder)
    return folder


@pytest.fixture(scope="module")
def service(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    found = Supervised(bundle, tmp_path_factory.mktemp("chaos"), "--deadline-ms", "20000")
    yield found
    found.close()


def right_answers(bundle: Path, x: np.ndarray) -> dict[str, np.ndarray]:
    manifest = BundleManifest.from_json((bundle / BUNDLE_FILE).read_bytes())
    return {digest: logits for (digest, exit), logits in answers_of_files(manifest, bundle, x).items() if exit is None}


@pytest.mark.long
def test_a_service_that_is_killed_loses_no_request(service: Supervised, bundle: Path) -> None:
    x, asked, ended = images(), Asked(), threading.Event()
    expected = right_answers(bundle, x)
    asks = partial(asked.until, ended, service.url, [x], lambda _, told: expected[told["subnet"]], 0.01)
    killed = [fault for fault in service.faults if fault.name == "killed"]
    with beside(asks, over=ended):
        with failing(killed, pause_s=0.1, seed=0) as faults:
            assert soon(lambda: faults["killed"] >= 1)
        answered = asked.counts["answered"]
        assert soon(lambda: asked.counts["answered"] > answered)
    assert asked.counts["no connection"] > 0
    assert asked.counts["answered"] == asked.counts["requests"] > 0
    assert asked.counts["wrong"] == asked.counts["lost"] == 0


def test_an_answer_that_is_another_one_is_wrong(service: Supervised) -> None:
    asked = Asked()
    with httpx.Client(base_url=service.url, headers=AUTHORIZATION, timeout=120) as http:
        asked.ask(http, 0, [images()], lambda *_: np.zeros((1, 1), np.float32))
        asked.ask(http, 0, [np.zeros((1, 1), np.float32)], lambda *_: np.zeros((1, 1), np.float32))
    assert (asked.counts["wrong"], asked.counts["lost"], asked.counts["answered"]) == (1, 1, 1)


@pytest.mark.long
def test_a_fault_that_cannot_begin_is_told_at_the_end() -> None:
    def broken() -> None:
        raise RuntimeError("cannot begin")

    with pytest.raises(RuntimeError, match="cannot begin"), failing([Fault("broken", broken, broken)], 0.0, 0):
        time.sleep(0.05)
