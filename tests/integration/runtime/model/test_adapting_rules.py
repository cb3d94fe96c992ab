"""A model that adapts by rules: what a sensed device changes, whose rules count, and what a service tells of them."""

import shutil
from pathlib import Path

import pytest

import adaptive_runtime
from adaptive_runtime import AdaptingOptions
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, BundleManifest
from adaptive_runtime.model.adapting import Adaptation
from adaptive_runtime.model.variants import BundleVariants
from adaptive_runtime.policy import ChoiceLimits, ChoiceRules, parse_rules, read_log, replay
from adaptive_runtime.state.sensing import SensedState
from benchmarks.simulation.published import FixedChoice
from tests.support.runtime.service_process import INFER, Served, body, images, refused, served, soon

RULES = "battery < 20% -> energy first; mu by battery"
BUDGET_MS = 5000.0


@pytest.fixture
def bundle(plain_bundle: Path, tmp_path: Path) -> Path:
    """A bundle whose second SubNet needs half of the energy, with rules."""
    folder = Path(shutil.copytree(plain_bundle, tmp_path / "bundle", ignore=shutil.ignore_patterns("prepared")))
    manifest = BundleManifest.from_json((folder / BUNDLE_FILE).read_bytes())
    rows = tuple(row.model_copy(update={"energy_mj": 10.0 / (1 + at)}) for at, row in enumerate(manifest.subnets))
    (folder / BUNDLE_FILE).write_text(manifest.model_copy(update={"subnets": rows, "policy": RULES}).to_json())
    return folder


class Clock:
    """Time that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_what_is_sensed_decides_with_the_rules_and_the_record_replays(bundle: Path, tmp_path: Path) -> None:
    manifest = BundleManifest.from_json((bundle / BUNDLE_FILE).read_bytes())
    rows, clock, file = BundleVariants.of(manifest, "onnx"), Clock(), tmp_path / "decisions.jsonl"
    options = AdaptingOptions(rules=RULES, decisions=file)
    adapting = Adaptation(rows, ChoiceLimits(budget_ms=BUDGET_MS), options, clock)
    large, small = (row.digest for row in manifest.subnets)
    assert adapting.first.digest == large
    found = []
    for battery, plugged in ((1.0, False), (0.1, False), (0.1, False), (0.1, True), (0.6, True), (0.6, True)):
        device = SensedState(
            at_s=clock.now_s,
            wall_s=0.0,
            battery=battery,
            plugged=plugged,
            memory_available_mib=500.0,
            memory_total_mib=1e3,
        )
        adapting.sensed(device)
        decision = adapting.choose()
        found.append((rows.variants[decision.variant].digest, adapting.state.rule, adapting.state.mu))
        clock.now_s += 2.0
    adapting.stop()
    saving, by_battery = "rule 'battery < 20% -> energy first' holds", "rule 'mu by battery'"
    assert [rule for _, rule, _ in found] == [by_battery, saving, saving, saving, by_battery, by_battery]
    assert [mu for _, _, mu in found] == [1.0, None, None, None, 1.0, 1.0]
    assert [digest for digest, _, _ in found] == [large, large, small, small, small, large]
    assert replay(file, rows.table, adapting.policy) == 6
    (section,) = read_log(file)
    assert section.head.policy == RULES
    assert section.decisions[0].inputs.device is not None
    assert section.decisions[0].inputs.device.memory_share == 0.5


def test_the_rules_of_a_bundle_count_until_others_are_given(bundle: Path) -> None:
    manifest = BundleManifest.from_json((bundle / BUNDLE_FILE).read_bytes())
    assert '"policy"' not in manifest.model_copy(update={"policy": None}).to_json(), "older run times read it"

    def rules(**given: object) -> ChoiceRules | None:
        with adaptive_runtime.load(bundle, BUDGET_MS, prepares=False, **given) as model:  # type: ignore[arg-type]
            return None if model.adaptation is None else model.adaptation.rules

    assert rules() is None
    for given, text in (
        ({"adapts": True}, RULES),
        ({"policy": "energy first"}, "energy first"),
        ({"policy": parse_rules("latency first")}, "latency first"),
        ({"adapts": AdaptingOptions(rules="mu = 0.5")}, "mu = 0.5"),
        ({"policy": lambda best: FixedChoice(best, 0)}, RULES),
    ):
        found = rules(**given)
        assert found is not None
        assert found.text == text
    with pytest.raises(AdaptiveError, match=r"^policy, rule 1, column 8: the rule ends; allowed: first"):
        adaptive_runtime.load(bundle, BUDGET_MS, policy="latency")
    with pytest.raises(AdaptiveError, match="adapting: no budget"):
        adaptive_runtime.load(bundle, policy="latency first")


def told(service: Served, step: str) -> list[str]:
    """SubNets of the decisions with this step, the latest first."""
    return [one["name"] for one in service.state()["decisions"] if one["step"] == step]


@pytest.mark.long
def test_a_service_follows_rules_and_tells_them(bundle: Path, tmp_path: Path) -> None:
    supply = tmp_path / "root" / "sys" / "class" / "power_supply" / "BAT0"
    supply.mkdir(parents=True)
    for name, text in (("type", "Battery"), ("capacity", "100"), ("status", "Discharging")):
        (supply / name).write_text(text)
    options = ("--adapts", "--budget-ms", "200000", "--deadline-ms", "300000")
    large, small = (one.digest for one in BundleManifest.from_json((bundle / BUNDLE_FILE).read_bytes()).subnets)
    with served(bundle, tmp_path / "log", *options, "--sensors-root", str(tmp_path / "root")) as service:

        def answered_by(digest: str) -> bool:
            response = service.http.post(INFER, **body(images()))
            return bool(response.json()["parameters"]["subnet"] == digest)

        assert soon(lambda: answered_by(large) and "autotailor_mu 1.0" in service.http.get("/metrics").text)
        assert service.state()["load"]["battery"] == 1.0
        assert service.state()["model"]["rule"] == "rule 'mu by battery'"
        (supply / "capacity").write_text("10")
        assert soon(lambda: answered_by(small) or told(service, "up")[:1] == [small])
        assert told(service, "rule") == [large]
        assert service.state()["decisions"][0]["reason"].startswith("rule 'battery < 20% -> energy first' holds; ")
        held = "autotailor_rule{rule=\"rule 'battery < 20% -> energy first' holds\"} 1.0"
        assert held in service.http.get("/metrics").text
    line = refused("serve", str(bundle), "--budget-ms", "5", "--policy", "batery < 20% -> energy first")
    assert "policy, rule 1, column 1: 'batery'; allowed: battery, memory" in line
