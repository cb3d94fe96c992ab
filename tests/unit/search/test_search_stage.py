"""The search stage on a real SuperNet, with latency predictors that are sums, and one that is none."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from numpy.typing import NDArray
from pyarrow import parquet

import tailor_ir
from solvers.front import pareto_mask
from tailor_ir.spaces.selectors import SpaceSpec
from tasks.base.artifacts import read_json
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.base.schemas.predictions import Uncertainty
from tasks.base.schemas.winners import Front
from tasks.evaluation.subnets import Accuracy
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities
from tasks.prediction.latency import Correction, LatencyPredictor
from tasks.prediction.sums import Sums
from tasks.search import FRONT_FILE, WHOLE_FRONT_FILE, SearchRequest, Settings, Target, run
from tests.support.ir.networks import small_net


@dataclass
class MacsLatency:
    """A microsecond a thousand MACs, and the square root of the parameters: any object with `predict` will do."""

    net: Any
    known: dict[bytes, float] = field(default_factory=dict)

    def predict(self, codes: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.array([self._one(code) for code in codes])

    def _one(self, code: NDArray[np.int64]) -> float:
        if code.tobytes() not in self.known:
            config = self.net.space.decode(code)
            self.known[code.tobytes()] = self.net.macs(config) / 1e6 + self.net.parameters(config) ** 0.5 / 1e3
        return self.known[code.tobytes()]


@pytest.fixture(scope="module")
def supernet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", num_classes=10).eval()
    space: SpaceSpec = {"resolution": [24, 32], "*.width_mult": [0.5, 1.0]}
    folder = tmp_path_factory.mktemp("search") / "supernet"
    tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), space).save(folder)
    return folder


KNOWN = Uncertainty(samples=1000, predictor_points=1.2)


def search(supernet: Path, latency: Any, accuracy: AccuracyPredictor, settings: Settings, out: Path) -> Any:
    targets = [Target(name="pi", latency=latency)]
    request = SearchRequest(supernet=supernet, targets=targets, accuracy=accuracy, settings=settings, uncertainty=KNOWN)
    return run(request, out, Silent())["pi"]


@pytest.fixture(scope="module")
def accuracy(supernet: Path) -> AccuracyPredictor:
    """Sensitivities that grow with the MACs a modification saves."""
    net = tailor_ir.load(supernet)
    full = net.macs(net.max_config)
    shares = [net.macs(config) / full for config in modifications(net.space)]
    return AccuracyPredictor(sensitivities(net.space, [Accuracy(round(900 * s**0.1), 1000, 2 - s) for s in shares]))


def test_front_of_a_real_supernet_is_feasible_rising_and_reproducible(
    supernet: Path, accuracy: AccuracyPredictor, tmp_path: Path
) -> None:
    net = tailor_ir.load(supernet)
    settings = Settings(method="genetic", population=20, generations=30, plateau=8)
    found = search(supernet, MacsLatency(net), accuracy, settings, tmp_path)
    assert read_json(tmp_path / FRONT_FILE) == found
    assert len(found["winners"]) >= 10
    for row in found["winners"]:
        assert row["predicted_ms"] <= row["budget_ms"]
        assert row["macs"] == net.macs(row["config"])
        assert row["digest"] == net.space.digest(row["config"])
        assert row["predicted_ms"] == MacsLatency(net).predict(net.space.encode([row["config"]]))[0]
    scores = [row["predicted_score"] for row in found["winners"]]
    assert scores == sorted(scores)
    assert found["front"]
    assert set(found["front"]) <= {row["digest"] for row in found["winners"]}
    assert {row["scaled"] for row in found["baseline"]} == {"all variables", "all but the resolution"}
    assert found["fastest"]["predicted_ms"] <= found["winners"][0]["predicted_ms"]
    assert search(supernet, MacsLatency(net), accuracy, settings, tmp_path) == found


def macs_ms(net: Any) -> LatencyPredictor:
    """A millisecond for each million MACs."""
    sums = Sums.compile(net, {feature: feature.macs / 1e6 for feature in net.unique_operators()})
    return LatencyPredictor(sums, Correction(offset_ms=0.25), Sums(net.space.cardinalities.tolist(), ()))


def all_codes(net: Any) -> NDArray[np.int64]:
    """Canonical, each once."""
    every = np.stack(np.meshgrid(*map(np.arange, net.space.cardinalities), indexing="ij"), -1)
    return np.unique(net.space.canonical_codes(every.reshape(-1, len(net.space.variables))), axis=0)


@pytest.fixture(scope="module")
def with_alternatives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blocks under merged ones do not exist in a SubNet."""
    space: SpaceSpec = {"alternatives": ["merged", "pruned_0.5"], "*.depth": "auto", "*.width_mult": [0.5, 1]}
    folder = tmp_path_factory.mktemp("search") / "with alternatives"
    tailor_ir.compile(small_net(blocks=3), torch.zeros(1, 3, 16, 16), space).save(folder)
    return folder


METHODS = ("exact", "genetic", "nsga2")


@pytest.mark.long_cases("genetic")
@pytest.mark.parametrize("method", METHODS)
def test_winners_are_the_optima_of_a_space_small_enough_to_list(
    method: str, supernet: Path, accuracy: AccuracyPredictor, tmp_path: Path
) -> None:
    assert_optima(method, supernet, accuracy, tmp_path)


@pytest.mark.parametrize("method", METHODS)
def test_winners_with_alternatives_are_the_optima(method: str, with_alternatives: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    space = tailor_ir.load(with_alternatives).space
    lost = [Accuracy(int(rng.integers(700, 900)), 1000, float(rng.uniform(1, 2))) for _ in modifications(space)]
    accuracy = AccuracyPredictor(sensitivities(space, lost))
    found = assert_optima(method, with_alternatives, accuracy, tmp_path)
    kinds = {str(choice) for row in found["winners"] for name, choice in row["config"].items() if "block" in name}
    assert any(kind.startswith("merged") for kind in kinds)
    assert "pruned_0.5" in kinds


def assert_optima(method: str, supernet: Path, accuracy: AccuracyPredictor, tmp_path: Path) -> Any:
    net = tailor_ir.load(supernet)
    latency: Any = macs_ms(net) if method == "exact" else MacsLatency(net)
    codes = all_codes(net)
    latency_ms, score = latency.predict(codes), accuracy.score(codes)
    settings = Settings.model_validate({"method": method, "tolerance": 0, "plateau": 10})
    found = search(supernet, latency, accuracy, settings, tmp_path)
    for row in found["winners"]:
        assert row["predicted_score"] == pytest.approx(score[latency_ms <= row["budget_ms"]].max(), abs=1e-12)
        assert row["predicted_ms"] <= row["budget_ms"]
        assert method != "exact" or row["stopped"] == "optimal"
    assert found["fastest"]["predicted_ms"] == pytest.approx(latency_ms.min())
    assert found["winners"][-1]["predicted_score"] == pytest.approx(score.max(), abs=1e-12)
    return found


def test_predictors_that_are_no_sums_are_refused_by_the_exact_search(
    supernet: Path, accuracy: AccuracyPredictor, tmp_path: Path
) -> None:
    latency = MacsLatency(tailor_ir.load(supernet))
    with pytest.raises(
        UserError,
        match=r"search\.method=exact: MacsLatency and AccuracyPredictor are no sums.*search=genetic or search=nsga2",
    ):
        search(supernet, latency, accuracy, Settings(method="exact"), tmp_path)


def test_infeasible_budget_writes_nothing(supernet: Path, accuracy: AccuracyPredictor, tmp_path: Path) -> None:
    latency = macs_ms(tailor_ir.load(supernet))
    with pytest.raises(UserError, match=r"search\.budgets_ms: 0\.001 ms is below the fastest SubNet, predicted"):
        search(supernet, latency, accuracy, Settings(method="exact", budgets_ms=(0.001,)), tmp_path)
    assert not list(tmp_path.iterdir())


def random_ms(net: Any) -> LatencyPredictor:
    """A millisecond for about a million MACs, another factor for each operator."""
    rng = np.random.default_rng(0)
    latencies = {feature: feature.macs / 1e6 * float(rng.uniform(0.5, 2)) for feature in net.unique_operators()}
    none = Sums(net.space.cardinalities.tolist(), ())
    return LatencyPredictor(Sums.compile(net, latencies), Correction(offset_ms=0.25), none)


def test_an_exact_search_lists_the_whole_front(supernet: Path, accuracy: AccuracyPredictor, tmp_path: Path) -> None:
    net = tailor_ir.load(supernet)
    latency = random_ms(net)
    found = search(supernet, latency, accuracy, Settings(method="exact", tolerance=0.0), tmp_path)
    codes = all_codes(net)
    expected = codes[pareto_mask(latency.predict(codes), accuracy.score(codes))]
    table = parquet.read_table(tmp_path / WHOLE_FRONT_FILE).to_pylist()
    assert len(table) == len(expected) > 3
    assert {row["digest"] for row in table} == {net.space.digest(net.space.decode(code)) for code in expected}
    whole = found["whole_front"]
    assert whole["error"] == 0
    assert Front.read(tmp_path / FRONT_FILE).uncertainty == KNOWN
    assert whole["predicted_ms"] == sorted(whole["predicted_ms"]) == [row["predicted_ms"] for row in table]
    names = [variable.name for variable in net.space.variables]
    configs = [{name: row[name] for name in names if row[name] is not None} for row in table]
    assert [net.space.digest(config) for config in configs] == [row["digest"] for row in table]
    own = net.space.encode(configs)
    assert latency.predict(own).tolist() == pytest.approx(whole["predicted_ms"])
    assert accuracy.predict(own).tolist() == pytest.approx(whole["predicted_accuracy"])
    for winner in found["winners"]:
        within = [row for row in table if row["predicted_ms"] <= winner["budget_ms"]]
        assert within[-1]["digest"] == winner["digest"]


def test_with_limits_or_by_another_method_there_is_no_whole_front(
    supernet: Path, accuracy: AccuracyPredictor, tmp_path: Path
) -> None:
    latency = random_ms(tailor_ir.load(supernet))
    for settings in (Settings(method="exact", limits={"parameters": 4e6}), Settings(generations=3)):
        found = search(supernet, latency, accuracy, settings, tmp_path)
        assert found["whole_front"] is None
        assert not (tmp_path / WHOLE_FRONT_FILE).exists()


def test_no_subnet_with_an_operator_without_a_latency_is_found(
    supernet: Path, accuracy: AccuracyPredictor, tmp_path: Path
) -> None:
    net = tailor_ir.load(supernet)
    known = random_ms(net)
    codes = all_codes(net)
    features = net.unique_operators()
    counts = [Sums.compile(net, {f: float(f is feature) for f in features}).predict(codes) > 0 for feature in features]
    failed = next(f for f, has in zip(features, counts, strict=True) if has[-1] and 0 < has.sum() < len(codes) / 2)
    unknown = Sums.compile(net, {f: float(f is failed) for f in features})
    latency = LatencyPredictor(known.sums, known.correction, unknown)
    found = search(supernet, latency, accuracy, Settings(method="exact", tolerance=0.0), tmp_path)
    whole = codes[unknown.predict(codes) == 0]
    assert len(whole) < len(codes)
    best = accuracy.score(whole).max()
    assert found["winners"][-1]["predicted_score"] == pytest.approx(best)
    assert best < accuracy.score(codes).max()
    for row in (*found["winners"], found["fastest"]):
        assert unknown.predict(net.space.encode([row["config"]]))[0] == 0
    front = whole[pareto_mask(latency.predict(whole), accuracy.score(whole))]
    table = parquet.read_table(tmp_path / WHOLE_FRONT_FILE).to_pylist()
    assert {row["digest"] for row in table} == {net.space.digest(net.space.decode(code)) for code in front}
