"""What one network had measured is not measured for the next; what was noisy or failed is, when asked for."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from profiling_agents.client import AgentClient, MeasureSettings
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.measuring import operators as enumeration
from tasks.measuring import profile
from tasks.measuring.lut import Lut, LutStore, now
from tasks.measuring.profile import HANDLING_MS, plan
from tasks.prediction import latency
from tasks.prediction.settings import Settings as PredictSettings
from tests.support.tables.lut_entries import rewrite

MEASURE = MeasureSettings(time_cap_ms=5.0, warmup_ms=0.5, min_blocks=1, patience=0.0)


@pytest.fixture(scope="module")
def operators(supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operators")
    enumeration.run(supernet, folder, Silent())
    return folder


@pytest.fixture
def halves(operators: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two networks that share a third of their operators."""
    features = list(enumeration.read_operators(operators).values())
    third = len(features) // 3
    folders = (tmp_path / "first", tmp_path / "second")
    for folder, own in zip(folders, (features[: 2 * third], features[third:]), strict=True):
        folder.mkdir()
        enumeration.write_operators(folder / enumeration.OPERATORS_FILE, {feature: {} for feature in own})
    return folders


@pytest.fixture
def settings(tmp_path: Path) -> profile.Settings:
    return profile.Settings(method="alone", measure=MEASURE, store=tmp_path / "luts", flush_s=0.05)


def count(folder: Path) -> int:
    return len(enumeration.read_operators(folder))


@pytest.mark.few("onnxruntime")
def test_the_next_network_measures_only_what_the_first_did_not(
    halves: tuple[Path, Path], settings: profile.Settings, device: AgentClient, tmp_path: Path
) -> None:
    first, second = halves
    shared = enumeration.read_operators(first).keys() & enumeration.read_operators(second).keys()
    before = plan(settings, first, device.capabilities())
    assert (before["operators"], before["known"], before["to_measure"]) == (count(first), 0, count(first))
    assert before["estimated_from"] == "settings"
    assert before["estimated_s"] == pytest.approx(count(first) * (HANDLING_MS + 5.5) * 1e-3, abs=1e-3)
    assert settings.store is not None
    assert not settings.store.exists()

    assert profile.run(settings, first, device, tmp_path / "one", Silent())["measured_now"] == count(first)
    planned = plan(settings, second, device.capabilities())
    assert (planned["known"], planned["to_measure"]) == (len(shared), count(second) - len(shared))
    assert sum(planned["to_measure_by_operator"].values()) == planned["to_measure"]
    assert planned["estimated_from"] == "earlier measurements"
    costs_ms = [entry.cost_ms or 0 for entry in Lut.open(tmp_path / "one" / profile.LUT_FOLDER).entries()]
    assert min(costs_ms) <= 1e3 * planned["estimated_s"] / planned["to_measure"] <= max(costs_ms)

    result = profile.run(settings, second, device, tmp_path / "two", Silent())
    assert (result["known"], result["measured_now"]) == (len(shared), planned["to_measure"])
    one, two = (Lut.open(tmp_path / name / profile.LUT_FOLDER) for name in ("one", "two"))
    assert {entry.digest for entry in two.entries()} == set(enumeration.read_operators(second))
    assert all(one.get(digest) == two.get(digest) for digest in shared)
    assert plan(settings, second, device.capabilities())["estimated_s"] == 0


@pytest.mark.few("onnxruntime")
def test_what_measuring_cost_adds_up_to_the_time_of_the_stage(
    operators: Path, settings: profile.Settings, device: AgentClient, tmp_path: Path
) -> None:
    result = profile.run(settings, operators, device, tmp_path, Silent())
    entries = Lut.open(tmp_path / profile.LUT_FOLDER).entries()
    costs_ms = [entry.cost_ms for entry in entries if entry.cost_ms is not None]
    assert len(costs_ms) == len(entries)
    assert min(costs_ms) > 0
    assert 0.5 * len(costs_ms) < sum(costs_ms) <= 1e3 * result["wall_s"]  # at least the warm-up of each


@pytest.mark.long
def test_other_settings_measure_again_unless_any_will_do(
    halves: tuple[Path, Path], settings: profile.Settings, device: AgentClient, tmp_path: Path
) -> None:
    first, _ = halves
    profile.run(settings, first, device, tmp_path / "quick", Silent())
    longer = settings.model_copy(update={"measure": MEASURE.model_copy(update={"time_cap_ms": 6.0})})
    lenient = longer.model_copy(update={"other_settings": True})
    assert profile.run(lenient, first, device, tmp_path / "any", Silent())["measured_now"] == 0
    assert profile.run(longer, first, device, tmp_path / "long", Silent())["measured_now"] == count(first)
    assert profile.run(settings, first, device, tmp_path / "again", Silent())["measured_now"] == 0
    quick, again = (Lut.open(tmp_path / name / profile.LUT_FOLDER).entries() for name in ("quick", "again"))
    assert quick == again


@pytest.mark.long
def test_noisy_and_failed_operators_are_measured_again_on_request_once(
    halves: tuple[Path, Path], settings: profile.Settings, device: AgentClient, tmp_path: Path
) -> None:
    first, _ = halves
    profile.run(settings, first, device, tmp_path / "one", Silent())
    assert settings.store is not None
    table = profile.open_table(settings, settings.store, device.capabilities())
    noisy, failing, steady = sorted(table.entries(), key=lambda entry: entry.digest)[:3]
    failure = replace(
        failing,
        state="failed",
        reason="no memory",
        noisy=False,
        measured_at=now(),
        p50_ms=None,
        p90_ms=None,
        spread=None,
    )
    rest = [entry for entry in table.entries() if entry not in (noisy, failing)]
    table.append([replace(noisy, noisy=True, measured_at=now()), failure])
    table.append([replace(entry, noisy=False, measured_at=now()) for entry in rest])
    assert profile.run(settings, first, device, tmp_path / "none", Silent())["measured_now"] == 0

    for kind, digest in (("noisy", noisy.digest), ("failed", failing.digest)):
        wish = settings.model_copy(update={"remeasure": (kind,)})
        assert plan(wish, first, device.capabilities())["to_measure"] == 1
        assert profile.run(wish, first, device, tmp_path / kind, Silent())["measured_now"] == 1
        entry = Lut.open(tmp_path / kind / profile.LUT_FOLDER).get(digest)
        assert entry is not None
        assert entry.state == "ok"
        assert entry.measured_at > failing.measured_at
        again = profile.run(wish, first, device, tmp_path / kind, Silent())
        assert again["measured_now"] == 0, "a run that goes on in the same folder began anew"
    everything = settings.model_copy(update={"remeasure": ("all",)})
    assert profile.run(everything, first, device, tmp_path / "all", Silent())["measured_now"] == count(first)
    entry = Lut.open(tmp_path / "all" / profile.LUT_FOLDER).get(steady.digest)
    assert entry is not None
    assert entry.measured_at > steady.measured_at


@pytest.mark.few("onnxruntime")
def test_an_entry_that_is_none_is_measured_and_refused_until_it_is(
    halves: tuple[Path, Path], settings: profile.Settings, device: AgentClient, tmp_path: Path
) -> None:
    first, _ = halves
    profile.run(settings, first, device, tmp_path / "one", Silent())
    assert settings.store is not None
    part = max((settings.store / profile.device_key(device.capabilities()).name).iterdir())
    rows = parquet.read_table(part).to_pylist()
    rows[0]["p50_ms"] = 0.0
    rewrite(part, parquet.read_table(part).from_pylist(rows, schema=parquet.read_schema(part)))
    with pytest.raises(UserError, match=rf"{rows[0]['operator']} {rows[0]['digest']}: p50_ms = 0.*autotailor profile"):
        LutStore(settings.store).valid_rows()
    result = profile.run(settings, first, device, tmp_path / "two", Silent())
    assert (result["measured_now"], len(result["not_valid"])) == (1, 1)
    assert len(LutStore(settings.store).valid_rows()) == count(first)


@pytest.mark.few("onnxruntime")
def test_a_predictor_refuses_a_table_of_another_build_and_one_that_lacks_operators(
    supernet: Path, halves: tuple[Path, Path], settings: profile.Settings, device: AgentClient, tmp_path: Path
) -> None:
    first, _ = halves
    profile.run(settings, first, device, tmp_path / "one", Silent())
    with pytest.raises(UserError, match=r"has no entry for .* more; autotailor profile … profile\.remeasure"):
        latency.run(PredictSettings(), supernet, tmp_path / "one", device, tmp_path, Silent())
    assert settings.store is not None
    table = profile.open_table(settings, settings.store, device.capabilities())
    other = Lut(tmp_path / "other" / profile.LUT_FOLDER, replace(table.device, build="older"))
    other.append(table.entries())
    with pytest.raises(UserError, match=r"measured on another device \(build older, here .*autotailor profile"):
        latency.run(PredictSettings(), supernet, tmp_path / "other", device, tmp_path, Silent())


def test_a_summary_is_json_and_says_how_operators_were_measured(
    halves: tuple[Path, Path], settings: profile.Settings, device: AgentClient, tmp_path: Path
) -> None:
    first, _ = halves
    result = json.loads(json.dumps(profile.run(settings, first, device, tmp_path, Silent()), allow_nan=False))
    assert result["lut"]["methods"] == {"alone": count(first)}
    assert result["lut"]["device"]["description"].startswith(device.capabilities().backend)
