"""A running service whose model adapts: its decisions are told, logged and replayed, also after kill -9 and on a full disk."""

import resource
import shutil
from pathlib import Path

import pytest

from adaptive_runtime.bundle.bundles import BUNDLE_FILE, BundleManifest
from adaptive_runtime.model.variants import BundleVariants
from adaptive_runtime.policy import read_log
from tests.support.runtime.failing_variant import CRASHES_FROM, make_first_fail
from tests.support.runtime.service_process import INFER, Served, body, images, refused, served, soon

ADAPTS = ("--adapts", "--budget-ms", "300000", "--deadline-ms", "300000")
LOG_BYTES = 8192


@pytest.fixture
def copy(plain_bundle: Path, tmp_path: Path) -> Path:
    """A bundle whose first SubNet crashes when it is told to."""
    folder = Path(shutil.copytree(plain_bundle, tmp_path / "bundle", ignore=shutil.ignore_patterns("prepared")))
    make_first_fail(folder)
    return folder


def ask(service: Served, value: float | None = None) -> str:
    """The SubNet that answers."""
    response = service.http.post(INFER, **body(images(value=value)))
    assert response.status_code == 200, response.text
    return str(response.json()["parameters"]["subnet"])


@pytest.mark.long
def test_decisions_and_the_slow_down_are_told_and_logged(copy: Path, tmp_path: Path) -> None:
    first, second = (one.digest for one in BundleManifest.from_json((copy / BUNDLE_FILE).read_bytes()).subnets)
    file = tmp_path / "decisions.jsonl"
    with served(copy, tmp_path / "log", *ADAPTS, "--decisions", str(file)) as service:
        assert {ask(service) for _ in range(20)} == {first}
        assert ask(service, CRASHES_FROM) != first
        state = service.state()
        assert soon(lambda: service.state()["load"]["load"] is not None)
        assert state["load"]["slow_down"] > 0
        metrics = service.http.get("/metrics").text
        assert "autotailor_slow_down " in metrics
        assert "autotailor_cache_hit_rate" not in metrics, "it is not asked for"
        assert ask(service) == second
        steps = [one["step"] for one in service.state()["decisions"]]
        assert "start" in steps
        assert "taken out" in steps
        assert all(one["reason"] for one in state["decisions"])
    (section,) = read_log(file)
    assert len(section.decisions) == 22


@pytest.mark.few("adapts")
@pytest.mark.parametrize("options", [ADAPTS, ()], ids=["adapts", "stays"])
def test_the_hit_rate_of_the_caches_is_told_with_its_source(
    plain_bundle: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    with served(plain_bundle, tmp_path / "log", *options, "--hit-rate") as service:
        assert soon(
            lambda: (
                service.state()["load"]["hit_rate"] is not None
                or any("hit rate: no counters, and cache probe" in line for line in service.lines())
            )
        )
        load = service.state()["load"]
        metrics = service.http.get("/metrics").text
    if load["hit_rate"] is None:
        assert load["hit_rate_by"] is None
        assert "autotailor_cache_hit_rate" not in metrics
    else:
        assert 0 <= load["hit_rate"] <= 1
        assert f'autotailor_cache_hit_rate{{by="{load["hit_rate_by"]}"}} ' in metrics


@pytest.mark.long
def test_after_kill_9_what_was_decided_goes_on(copy: Path, tmp_path: Path) -> None:
    manifest = BundleManifest.from_json((copy / BUNDLE_FILE).read_bytes())
    first, second = (one.digest for one in manifest.subnets)
    options = (*ADAPTS, "--state", str(tmp_path / "state"), "--decisions", str(tmp_path / "decisions.jsonl"))
    with served(copy, tmp_path / "log", *options) as service:
        assert ask(service) == first
        assert ask(service, CRASHES_FROM) == ask(service) == second
        assert soon(lambda: second in (tmp_path / "state" / "serving.json").read_text())
        service.process.kill()
        service.process.wait()
    with served(copy, tmp_path / "log", *options) as service:
        assert ask(service) == second
    before, after = read_log(tmp_path / "decisions.jsonl")
    table = BundleVariants.of(manifest, "onnx")
    assert before.head.state.running is None
    assert after.head.state.running is not None
    assert table.variants[after.head.state.running].digest == second


@pytest.mark.long
def test_a_full_disk_ends_the_log_of_decisions_in_one_line_and_no_answer(copy: Path, tmp_path: Path) -> None:
    def little_room() -> None:  # files can grow to this size, as on a disk that is nearly full
        resource.setrlimit(resource.RLIMIT_FSIZE, (LOG_BYTES, LOG_BYTES))

    file = tmp_path / "decisions.jsonl"
    with served(copy, tmp_path / "log", *ADAPTS, "--decisions", str(file), before=little_room) as service:
        assert soon(lambda: bool(ask(service)) and file.stat().st_size >= LOG_BYTES - 1024)

        def told() -> int:
            return sum("decisions are not recorded any more" in line for line in service.lines())

        assert soon(lambda: bool(ask(service)) and told() > 0)
        for _ in range(20):
            assert ask(service)
        assert told() == 1
        assert service.http.get("/v2/health/ready").status_code == 200


@pytest.mark.long
def test_a_log_that_cannot_be_written_and_a_missing_budget_are_one_line(copy: Path, tmp_path: Path) -> None:
    assert "cannot be written" in refused("serve", str(copy), *ADAPTS, "--decisions", str(tmp_path / "no" / "log"))
    line = refused("serve", str(copy), "--decisions", str(tmp_path / "log"))
    assert "--decisions: nothing decides; give --adapts or --policy, or leave it out" in line
    line = refused("serve", str(copy), "--load-trace", str(tmp_path / "no" / "load.json"))
    assert "load.json: cannot be written; give a file in a folder that is there" in line
    assert "no budget; give budget_ms" in refused("serve", str(copy), "--adapts")
