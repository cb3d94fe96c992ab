"""What adapting is made of: the table of a manifest, the estimate of the load, the record of decisions, early samples."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import (
    BundleDevice,
    BundledExit,
    BundledNet,
    BundledSubNet,
    BundleManifest,
    BundleOrigin,
    BundleRun,
    EarlyAnswers,
    FileFacts,
    SubNetLatency,
    SubNetMemory,
)
from adaptive_runtime.bundle.chains import ChainTensor, ImagePreparation
from adaptive_runtime.exits import Thresholds
from adaptive_runtime.model.adapting import Adaptation
from adaptive_runtime.model.estimate import AIMED_AT, ConformalMargin, LoadEstimate, ServedRun
from adaptive_runtime.model.options import AdaptingOptions
from adaptive_runtime.model.variants import BundleVariants
from adaptive_runtime.policy import (
    ChoiceLimits,
    ChoiceState,
    DecisionLog,
    LoadFactors,
    MostAccurate,
    RequestProgress,
    Switching,
    VariantLookUp,
    VariantTable,
    choose,
    replay,
)
from adaptive_runtime.policy.lookup import deviations
from adaptive_runtime.pool import Variant
from adaptive_runtime.state.sensing import SensedState
from tests.support import examples

TENSOR = ChainTensor(name="x", shape=(1, 3, 8, 8))
NET = BundledNet(files=("w",), input=TENSOR, output=TENSOR, chain="w", relative_difference=0.0)
PREPARATION = ImagePreparation(
    colours="RGB",
    crop="none",
    resolution=8,
    interpolation="none",
    mean=(0.0,) * 3,
    deviation=(1.0,) * 3,
    size=(8, 8),
    size_interpolation="none",
)
positive = st.floats(0.1, 100.0)
share = st.floats(0.0, 1.0)


@st.composite
def subnets(draw: st.DrawFn, number: int) -> BundledSubNet:
    digest, count = f"{number:016x}", draw(st.integers(0, 3))
    measured_ms, whole_accuracy = draw(st.none() | positive), draw(share)
    accuracies = st.none() | share.map(lambda accuracy: {"validation": accuracy, "test": accuracy / 2})
    exits = [
        BundledExit(
            exit=f"exit.{place}",
            macs=100 * (place + 1),
            latency_ms=draw(st.none() | positive),
            accuracy=draw(accuracies),
        )
        for place in range(count)
    ]
    early = EarlyAnswers(accuracy=draw(share), images=9, expected_ms=3.0, p50_ms=2.0, p90_ms=5.0, p99_ms=6.0)
    has_early = count > 0 and draw(st.booleans())
    return BundledSubNet(
        digest=digest,
        config={},
        input_shape=(1, 3, 8, 8),
        preparation=PREPARATION,
        nets={"onnx": NET if count else NET.model_copy(update={"chain": None})},
        macs=100,
        parameters=5,
        accuracy={"validation": whole_accuracy, "test": whole_accuracy / 2},
        latency=None
        if measured_ms is None
        else SubNetLatency(p50_ms=measured_ms, p90_ms=measured_ms, spread=0.0, n=1, noisy=False),
        predicted_ms=draw(positive),
        energy_mj=draw(st.none() | positive),
        memory=SubNetMemory(weights_mib=draw(positive), activations_mib=1.0),
        exits=tuple(exits),
        thresholds=Thresholds(measure="top_probability", thresholds=(0.5,)) if has_early else None,
        early=early if has_early and draw(st.booleans()) else None,
    )


@st.composite
def manifests(draw: st.DrawFn) -> BundleManifest:
    run = BundleRun(
        runtime="onnxruntime", version="1", threads=1, precision="fp32", measured=draw(st.booleans()), tolerance=1e-4
    )
    return BundleManifest(
        batch=1,
        files={"w": FileFacts(sha256="0" * 64, bytes=0)},
        subnets=tuple(draw(subnets(number)) for number in range(draw(st.integers(1, 4)))),
        runs={"onnx": run},
        device=BundleDevice(
            backend="b", version="1", provider="p", precision="fp32", threads=1, cpu_model="", system="", fingerprint=""
        ),
        made_from=BundleOrigin(network={}, data="", digests={}),
        predicted_error=draw(st.none() | st.floats(0.0, 0.5)),
    )


@settings(max_examples=examples(50), deadline=None)
@given(manifests())
def test_the_table_has_every_variant_whose_accuracy_is_known(manifest: BundleManifest) -> None:
    found = BundleVariants.of(manifest, "onnx")
    table, rows = found.table, list(found.variants)
    expected = []
    for subnet in manifest.subnets:
        expected += [Variant(subnet.digest)]
        expected += [Variant(subnet.digest, exit.exit) for exit in subnet.exits if exit.accuracy is not None]
        expected += [Variant(subnet.digest, early=True)] if subnet.early is not None else []
    assert rows == expected
    for row, variant in enumerate(rows):
        subnet = manifest.by_digest[variant.digest]
        assert table.memory_mib is not None
        assert table.memory_mib[row] == subnet.memory.weights_mib + subnet.memory.activations_mib
        if variant == Variant(variant.digest):
            measured = subnet.latency is not None
            assert table.latency_ms[row] == (subnet.latency.p50_ms if subnet.latency else subnet.predicted_ms)
            assert table.accuracy[row] == subnet.accuracy["validation"]
            error = table.latency_error_V[row]
            assert (error == 0) == (manifest.runs["onnx"].measured and (measured or manifest.predicted_error == 0))
        if variant.exit is not None:
            exit = next(one for one in subnet.exits if one.exit == variant.exit)
            assert exit.accuracy is not None
            assert table.accuracy[row] == exit.accuracy["validation"]
            until_ms = subnet.likely_ms * exit.macs / subnet.exits[-1].macs
            assert table.latency_ms[row] == pytest.approx(until_ms if exit.latency_ms is None else exit.latency_ms)
        if variant.early:
            assert table.latency_ms[row] == 3.0
            assert table.latency_error_V[row] > 0
    assert (table.energy_mj is not None) == all(one.energy_mj is not None for one in manifest.subnets)
    assert VariantLookUp(table).best(np.inf) is not None


def variants(latency_ms: tuple[float, ...] = (2.0, 5.0, 20.0)) -> BundleVariants:
    names = tuple(f"{number:016x}" for number in range(len(latency_ms)))
    table_rows = tuple(Variant(name) for name in names)
    accuracy = tuple(0.7 + 0.1 * number for number in range(len(names)))
    return BundleVariants(table_rows, VariantTable(names=names, accuracy=accuracy, latency_ms=latency_ms))


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_estimate_follows_a_step_and_keeps_its_factors_while_little_changes() -> None:
    rng, estimate = np.random.default_rng(0), LoadEstimate(variants().table)
    for request in range(60):
        estimate.observe([1], 5.0 * np.exp(0.02 * rng.normal()), 0.1 * request)
    calm = estimate.factors(6.0, None, 0.95)
    assert calm.own.get(1, (calm.mean[0],))[0] == pytest.approx(1.0, abs=0.03)
    for _ in range(5):
        estimate.observe([1], 5.0 * calm.mean[0], 6.0)
    assert estimate.factors(6.0, None, 0.95) is calm
    for request in range(4):
        estimate.observe([1], 15.0, 6.1 + 0.1 * request)
    busy = estimate.factors(6.5, None, 0.95)
    assert busy.own.get(1, (busy.mean[0],))[0] == pytest.approx(3.0, rel=0.1)
    assert estimate.ratio == pytest.approx(3.0)
    estimate.observe([0], 4.0, 7.0)
    assert estimate.ratio == 2.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", [1, 10, 15, 16, 19])
def test_a_table_that_has_nothing_to_do_with_the_device_gives_finite_factors(seed: int) -> None:
    rng, at_s = np.random.default_rng(seed), 0.0
    predicted_ms, true_ms = 10 ** rng.uniform(-3, 4, (2, 3))
    estimate = LoadEstimate(variants(tuple(predicted_ms.tolist())).table)
    for _ in range(100):
        at_s += 10 ** rng.uniform(-3, 2)
        row, load = int(rng.integers(3)), rng.uniform()
        estimate.observe([row], true_ms[row] * np.exp(0.1 * rng.normal()), at_s, load=load)
        factors = estimate.factors(at_s, load, 0.9)
        assert np.isfinite([*factors.mean, *factors.deviation]).all()


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99])
def test_requests_keep_the_quantile_that_the_factors_tell(quantile: float) -> None:
    rng, bundle = np.random.default_rng(1), variants((5.0,))
    estimate, look_up = LoadEstimate(bundle.table), VariantLookUp(bundle.table)
    limits, within = ChoiceLimits(budget_ms=1.0, quantile=quantile), []
    for request in range(3000):
        measured_ms = 10.0 * np.exp(0.1 * rng.normal())
        within.append(measured_ms <= look_up.effective_ms(0, limits, estimate.factors(0.1 * request, None, quantile)))
        estimate.observe([0], measured_ms, 0.1 * request)
    assert np.mean(within) == pytest.approx(quantile, abs=0.12 if quantile == 0.5 else 0.04)


def test_the_record_begins_anew_and_each_file_replays_by_itself(tmp_path: Path) -> None:
    file, clock, bundle = tmp_path / "decisions.jsonl", Clock(), variants()
    adapting = Adaptation(
        bundle, ChoiceLimits(budget_ms=24.0), AdaptingOptions(decisions=file, decisions_mib=0.02), clock
    )
    for request in range(120):
        clock.now_s += 0.2
        row = adapting.choose(cold=frozenset({1}) if request % 7 == 0 else frozenset()).variant
        run_ms = bundle.table.latency_ms[row] * (3.0 if request // 30 % 2 else 1.0)
        adapting.served([ServedRun(bundle.variants[row], ("last",), run_ms)])
    adapting.stop()
    earlier = tmp_path / "decisions.1.jsonl"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decisions.1.jsonl", "decisions.jsonl"]
    assert file.stat().st_size < 0.03 * 2**20
    assert replay(file, bundle.table, adapting.policy) > 0
    assert replay(earlier, bundle.table, adapting.policy) > 10
    assert '"meanwhile":0' in earlier.read_text() + file.read_text()


def test_a_full_disk_ends_the_record_and_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AdaptiveError, match="nowhere/decisions: cannot be written"):
        DecisionLog(tmp_path / "nowhere" / "decisions", variants().table, ChoiceState())
    file, limits = tmp_path / "decisions.jsonl", ChoiceLimits(budget_ms=30.0)
    adapting = Adaptation(variants(), limits, AdaptingOptions(decisions=file, decisions_mib=1e-6), Clock())
    (tmp_path / "decisions.1.jsonl").mkdir()
    assert len({adapting.choose().variant for _ in range(3)}) == 1
    assert ["decisions are not recorded any more" in line for line in caplog.messages] == [True]


def test_a_model_without_a_record_leaves_its_own_to_the_one_that_takes_over(tmp_path: Path) -> None:
    limits, first, second = ChoiceLimits(budget_ms=30.0), tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    silent = Adaptation(variants(), limits, AdaptingOptions(), Clock())
    adapting = Adaptation(variants(), limits, AdaptingOptions(decisions=first), Clock())
    adapting.take_over(silent)
    adapting.choose()
    later = Adaptation(variants(), limits, AdaptingOptions(decisions=second), Clock())
    later.take_over(adapting)
    for each in (later, adapting):
        each.choose()
    later.stop()
    later.choose()  # a record that is closed takes no more
    assert replay(tmp_path / "first.1.jsonl", adapting.variants.table, adapting.policy) == 1
    assert replay(first, later.variants.table, later.policy) == 1
    assert len(second.read_text().splitlines()) == 1


def test_limits_that_threads_set_at_once_are_all_kept() -> None:
    adapting = Adaptation(variants(), ChoiceLimits(budget_ms=30.0), AdaptingOptions(), Clock())
    ends = {"budget_ms": 40.0, "quantile": 0.9}

    def set_one(name: str) -> None:
        for step in range(200):
            adapting.set_limits(**{name: ends[name] * (1 - step % 2 / 10)})
        adapting.set_limits(**{name: ends[name]})

    with ThreadPoolExecutor(len(ends)) as pool:
        list(pool.map(set_one, ends))
    assert {name: getattr(adapting.limits, name) for name in ends} == ends


def test_a_foreseen_load_counts_once() -> None:
    clock, bundle = Clock(), variants((5.0,))
    adapting = Adaptation(bundle, ChoiceLimits(budget_ms=100.0), AdaptingOptions(), clock)
    rng = np.random.default_rng(0)

    def second(load: float) -> float:
        for _ in range(10):
            clock.now_s += 0.1
            run_ms = 5.0 * float(np.exp(2 * load + 0.02 * rng.normal()))
            adapting.served([ServedRun(bundle.variants[0], ("last",), run_ms)])
        adapting.sensed(SensedState(at_s=clock.now_s, wall_s=0.0, cpu_use=load))
        return adapting.state.slow_down[0]

    for _ in range(120):
        second(float(rng.choice([0.2, 0.5, 0.8])))
    for load in (0.2, 0.2, 0.8, 0.8, 0.2):
        assert second(load) == pytest.approx(np.exp(2 * load), rel=0.25)


def test_early_samples_count_for_the_exit_at_which_they_left() -> None:
    bundle = variants()
    rows = (Variant("a"), Variant("a", "first"), Variant("a", early=True))
    adapting = Adaptation(BundleVariants(rows, bundle.table), ChoiceLimits(budget_ms=50.0), AdaptingOptions(), Clock())
    before = adapting.state.slow_down
    adapting.served([ServedRun(Variant("a", early=True), ("first", "last"), 9.0)])  # samples that left at several exits
    adapting.served([ServedRun(Variant("b"), ("last",), 9.0)])
    assert adapting.state.slow_down == before
    for _ in range(20):
        adapting.served([ServedRun(Variant("a", early=True), ("first", "first"), 5.0)])
    assert adapting.state.slow_down[0] == pytest.approx(1.0, abs=0.1)


def test_what_does_not_work_is_left_and_cold_variants_have_a_stand_in() -> None:
    adapting = Adaptation(variants(), ChoiceLimits(budget_ms=1e3), AdaptingOptions(), Clock())
    assert adapting.choose().variant == 2
    left = adapting.choose(without=frozenset({2}))
    assert (left.variant, left.step, left.meanwhile) == (1, "down", None)
    assert left.reason.startswith(f"{2:016x} (90.00%) does not work; ")
    cold = adapting.choose(without=frozenset({2}), cold=frozenset({1}))
    assert (cold.variant, cold.meanwhile) == (1, 0)
    nothing = adapting.choose(without=frozenset({2}), cold=frozenset({0, 1}))
    assert (nothing.variant, nothing.meanwhile) == (1, None)
    with pytest.raises(AdaptiveError, match="choice: no variant is left"):
        MostAccurate(adapting.look_up).find(adapting.limits, LoadFactors(), frozenset(range(3)))


def test_switching_is_what_adapts_where_nothing_else_is_said() -> None:
    adapting = Adaptation(variants(), ChoiceLimits(budget_ms=9.0), AdaptingOptions(), Clock())
    assert isinstance(adapting.policy, partial)
    assert adapting.policy.func is choose
    best = MostAccurate(adapting.look_up)
    assert adapting.policy.keywords == {"objective": best, "hysteresis": Switching(best)}
    assert adapting.first == adapting.variants.variants[0]
    assert adapting.useful == adapting.variants.variants


def test_late_requests_make_decisions_more_careful_until_few_are_late() -> None:
    rng, margin, limits, late = (
        np.random.default_rng(0),
        ConformalMargin(),
        ChoiceLimits(budget_ms=1.0, quantile=0.95),
        [],
    )
    for _ in range(
        4000
    ):  # of a request that is late beyond its quantile, and by three times the deviation that is told
        above = deviations(margin.limits(limits, None).quantile)
        late.append(bool(2.0 * rng.normal() > above))
        margin.observe(late[-1], limits.quantile, None)
    assert np.mean(late[1000:]) == pytest.approx(0.7 * 0.05, abs=0.01)
    assert margin.factor(None) > 1.3
    for _ in range(2000):
        margin.observe(False, limits.quantile, None)
    assert margin.limits(limits, None).quantile < limits.quantile
    assert margin.limits(limits, None).quantile >= 0.5


def test_late_requests_under_one_load_say_nothing_of_another() -> None:
    margin = ConformalMargin()
    margin.observe(True, 0.9, 1.0)
    assert margin.factor(1.0) == pytest.approx(np.exp(0.5 * (1 - AIMED_AT * 0.1)))
    assert margin.factor(0.5) == margin.factor(None) == 1.0
    assert 1.0 < margin.factor(0.8) < margin.factor(0.9) < margin.factor(1.0)
    margin.observe(True, 0.9, 0.6)  # between two loads at which factors are kept
    assert margin.factor(0.6) == pytest.approx(np.exp(0.5 * (1 - AIMED_AT * 0.1)))
    for _ in range(100):  # requests elsewhere
        margin.unused()
    assert margin.factor(0.6) == pytest.approx(np.exp(0.25 * (1 - AIMED_AT * 0.1)))


def test_a_model_that_is_late_decides_more_carefully() -> None:
    bundle, found = variants((5.0,)), dict[float, float]()
    for spent_ms in (5.0, 30.0):
        adapting = Adaptation(bundle, ChoiceLimits(budget_ms=9.0, quantile=0.9), AdaptingOptions(), Clock())
        for _ in range(3):
            run = ServedRun(bundle.variants[0], ("last",), 5.0)
            adapting.served([run], RequestProgress(1, 0, spent_ms=spent_ms))
        assert adapting.limits.quantile == 0.9  # the user's own stays
        found[spent_ms] = adapting.choose().effective_ms
    assert found[30.0] > 1.02 * found[5.0]


def test_a_request_that_no_variant_could_have_kept_makes_none_more_careful() -> None:
    bundle, found = variants((5.0,)), dict[float, float]()
    for spent_ms in (3.0, 30.0):
        adapting = Adaptation(bundle, ChoiceLimits(budget_ms=4.0, quantile=0.9), AdaptingOptions(), Clock())
        for _ in range(3):
            assert not adapting.choose().within
            adapting.served([ServedRun(bundle.variants[0], ("last",), 5.0)], RequestProgress(1, 0, spent_ms=spent_ms))
        found[spent_ms] = adapting.choose().effective_ms
    assert found[30.0] == found[3.0]
