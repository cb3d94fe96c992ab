"""SubNets that a search on the device finds join a running service, between two requests."""

import shutil
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

import adaptive_runtime
from adaptive_runtime.base.files import replace_file
from adaptive_runtime.bundle.bundles import FOUND_FILE, FoundSubNets, OpenBundle
from adaptive_runtime.local_search import search
from adaptive_runtime.policy import replay
from tests.support.runtime.failing_variant import CRASHES_FROM, make_first_fail
from tests.support.runtime.searching import SearchingDevice, searching_device
from tests.support.runtime.service_process import AUTHORIZATION, INFER, Served, ask, body, images, refused, served, soon
from tests.support.threads import beside

TOLERANCE = 1e-5
BUDGET_MS = 300_000.0


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> SearchingDevice:
    return searching_device(tmp_path_factory.mktemp("joining"))


def joins(service: Served, folder: Path, times: int = 1) -> bool:
    return soon(lambda: service.lines().count(f"SubNets of '{folder}' have joined") == times)


def tells(service: Served, words: str) -> bool:
    return soon(lambda: any(words in line for line in service.lines()))


def keep_asking(service: Served, over: threading.Event, statuses: list[int]) -> None:
    """Ask until it is over; the statuses of all answers."""
    with httpx.Client(base_url=service.url, headers=AUTHORIZATION, timeout=300) as http:
        while not over.is_set():
            statuses.append(http.post(INFER, **body(images())).status_code)


@pytest.mark.parametrize("adapts", [False, True])
def test_what_a_search_finds_joins_a_running_service_that_loses_no_request(
    device: SearchingDevice, tmp_path: Path, adapts: bool
) -> None:
    folder, bundle = device.folder(tmp_path, "found"), device.bundle.folder
    log, over, statuses = tmp_path / "decisions.jsonl", threading.Event(), list[int]()
    adapting = ("--adapts", "--budget-ms", f"{BUDGET_MS:g}", "--decisions", str(log)) if adapts else ()
    with served(bundle, tmp_path / "log", "--also", str(folder), "--workers", "2", *adapting) as service:
        assert service.lines() == [f"'{folder}' has no {FOUND_FILE} yet: its SubNets join when a search has written it"]
        with beside(*[lambda: keep_asking(service, over, statuses)] * 3, over=over):
            search(device.bundle, device.images, folder, device.settings(generations=1), lambda event: None)
            assert joins(service, folder)
            after = len(statuses) + 20
            assert soon(lambda: len(statuses) >= after)
        assert set(statuses) == {200}
        assert service.state()["model"]["requests"] == len(statuses) == service.state()["outcomes"]["answered"]
        x = images(2)
        for found in FoundSubNets.read(folder).subnets:
            answer = service.http.post(INFER, **body(x, subnet=found.digest)).raise_for_status().json()
            assert answer["parameters"]["subnet"] == found.digest
            logits = next(one for one in answer["outputs"] if one["name"] == "logits")
            expected = device.net.build(found.config)(torch.from_numpy(x)).detach().numpy()
            difference = np.abs(np.reshape(logits["data"], logits["shape"]) - expected).max()
            assert difference <= TOLERANCE * np.abs(expected).max()
    if adapts:
        for file, also in ((log.with_name("decisions.1.jsonl"), None), (log, folder)):
            with adaptive_runtime.load(bundle, BUDGET_MS, adapts=True, also=also, prepares=False) as model:
                assert model.adaptation is not None
                assert replay(file, model.adaptation.variants.table, model.adaptation.policy) > 0


@pytest.mark.long
def test_what_was_taken_out_stays_out_when_others_join(device: SearchingDevice, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("prepared")
    bundle = Path(shutil.copytree(device.bundle.folder, tmp_path / "bundle", ignore=ignored))
    first, second = make_first_fail(bundle)
    folder = tmp_path / "found"
    folder.mkdir()
    failing = device._replace(bundle=OpenBundle.open(bundle), latencies=folder)
    with served(bundle, tmp_path / "log", "--also", str(folder)) as service:
        assert ask(service, images(value=CRASHES_FROM))["subnet"] == second
        search(failing.bundle, device.images, folder, failing.settings(generations=1), lambda event: None)
        assert joins(service, folder)
        assert ask(service, images())["subnet"] == second
        assert list(service.state()["model"]["taken_out"]) == [first]
        assert service.http.post(INFER, **body(images(), subnet=first)).status_code == 503


@pytest.mark.long
def test_a_result_that_cannot_be_used_is_one_line_and_the_next_one_joins(
    device: SearchingDevice, tmp_path: Path
) -> None:
    folder = device.folder(tmp_path, "found")
    search(device.bundle, device.images, folder, device.settings(generations=1), lambda event: None)
    whole = (folder / FOUND_FILE).read_text()
    with served(device.bundle.folder, tmp_path / "log", "--also", str(folder)) as service:
        found = FoundSubNets.read(folder).subnets[0].digest
        assert ask(service, images(), subnet=found)["subnet"] == found
        assert service.lines() == []
        foreign = whole.replace(device.bundle.digest, "0" * 64)
        for text, why in (("{", "is no JSON"), (foreign, "for another bundle")):
            replace_file(folder / FOUND_FILE, text)
            assert tells(service, why)
            assert service.lines()[-1].endswith("what serves goes on")
            assert ask(service, images(), subnet=found)["subnet"] == found
        replace_file(folder / FOUND_FILE, whole)
        assert joins(service, folder)


def test_a_folder_of_a_search_that_is_not_there_is_one_line(device: SearchingDevice, tmp_path: Path) -> None:
    line = refused("serve", str(device.bundle.folder), "--port", "0", "--also", str(tmp_path / "absent"))
    assert "is no folder; name that of a search on this device" in line
