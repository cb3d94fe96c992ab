"""A bundle that adapts: down at once, up after the wait, never to what does not work, and the same again from its record."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_runtime
import tailor_ir
from adaptive_runtime import AdaptingOptions
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, BundleManifest, SubNetLatency
from adaptive_runtime.bundle.chains import ChainRun, ChainRuntime
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.policy import Decision, Switching, read_log, replay
from adaptive_runtime.pool import Variant
from benchmarks.simulation.published import FixedChoice
from tests.support.ir.networks import perturb, small_net
from tests.support.runtime.bundled import write_plain_bundle
from tests.support.runtime.device_files import stat, write
from tests.support.threads import beside

SPACE: dict[str, Any] = {"*.width_mult": [0.5, 1], "exits": ["stage.1.block.*"]}
LARGE_MS, SMALL_MS, EXIT_MS = 16.0, 5.0, 8.0
BUDGET_MS = 40.0
DWELL_S = 0.3
SLOW = 6.0


class Written(NamedTuple):
    """A bundle of a large SubNet with an exit, and a small one; an image for it; and files of the device that it is on."""

    folder: Path
    device: Path
    manifest: BundleManifest
    x: np.ndarray

    @property
    def large(self) -> str:
        return self.manifest.subnets[0].digest

    @property
    def small(self) -> str:
        return self.manifest.subnets[1].digest

    @property
    def exit(self) -> str:
        return self.manifest.subnets[0].exits[0].exit


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    torch.manual_seed(0)
    network = small_net(blocks=3)
    network.classifier = nn.Linear(network.classifier.in_features, 10)
    net = tailor_ir.compile(perturb(network), torch.randn(1, 3, 16, 16), SPACE)
    folder = tmp_path_factory.mktemp("bundle")
    plain = write_plain_bundle(net, [net.max_config, net.min_config], folder)
    large, small = plain.subnets
    (first, *_) = large.exits
    exits = (first.model_copy(update={"latency_ms": EXIT_MS, "accuracy": {"test": 0.8}}), *large.exits[1:])
    rows = (
        large.model_copy(update={"latency": measured(LARGE_MS), "accuracy": {"test": 0.9}, "exits": exits}),
        small.model_copy(update={"latency": measured(SMALL_MS), "accuracy": {"test": 0.7}}),
    )
    manifest = plain.model_copy(update={"subnets": rows})
    (folder / BUNDLE_FILE).write_text(manifest.to_json())
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    files = {"proc/stat": stat(busy=100, idle=900), "proc/meminfo": "MemTotal: 4096 kB\nMemAvailable: 2048 kB"}
    return Written(folder, write(tmp_path_factory.mktemp("device"), files), manifest, x)


def measured(p50_ms: float) -> SubNetLatency:
    return SubNetLatency(p50_ms=p50_ms, p90_ms=p50_ms, spread=0.0, n=10, noisy=False)


class Load:
    """What makes all variants slower, and clocks that go on by what runs take alone, whatever the machine does meanwhile."""

    def __init__(self) -> None:
        self.factor = 1.0
        self.now_s = time.monotonic()
        self._of_thread, self._lock = threading.local(), threading.Lock()

    def spend(self, duration_ms: float) -> None:
        """A run of the calling thread takes so long."""
        self._of_thread.ns = self.thread_ns() + round(duration_ms * 1e6)
        with self._lock:
            self.now_s += duration_ms * 1e-3

    def thread_ns(self) -> int:
        """What the runs of the calling thread have taken."""
        return int(getattr(self._of_thread, "ns", 0))

    def clock_s(self) -> float:
        """What the runs of all threads have taken."""
        return self.now_s


class Timed:
    """A runtime whose runs take the latency that the bundle states, times the load, by the clocks of the load."""

    def __init__(self, runtime: ChainRuntime, latency_ms: float, load: Load) -> None:
        self.runtime, self.latency_ms, self.load = runtime, latency_ms, load
        self.batch = runtime.batch

    def start(self, x_NCHW: np.ndarray) -> ChainRun:
        self.load.spend(self.latency_ms * self.load.factor)
        return self.runtime.start(x_NCHW)

    def close(self) -> None:
        self.runtime.close()


def options(written: Written, **given: Any) -> AdaptingOptions:
    """Those of a device whose load never changes."""
    device = {"policy": lambda best: Switching(best, dwell_s=DWELL_S), "sensors_root": written.device}
    return AdaptingOptions(**{**device, **given})


def adapting(written: Written, load: Load, budget_ms: float = BUDGET_MS, **given: Any) -> DeployedModel:
    """The bundle, whose variants take as long as its manifest says, times the load, once all of them are loaded."""
    model = adaptive_runtime.load(written.folder, budget_ms, adapts=options(written, **given), prepares=False)
    assert model.adaptation is not None
    model.clock_ns, model.adaptation._clock = load.thread_ns, load.clock_s
    rows = model.adaptation.variants
    for variant, latency_ms in zip(rows.variants, rows.table.latency_ms, strict=True):
        chain = model.pool.answerer(variant).chain
        chain.runtime = Timed(chain.runtime, latency_ms, load)
    wait_until(lambda: len(model.state.warm) >= 3)
    return model


@pytest.fixture
def load() -> Load:
    return Load()


@pytest.fixture
def model(written: Written, load: Load) -> Iterator[DeployedModel]:
    with adapting(written, load) as model:
        yield model


def decided(model: DeployedModel) -> Decision:
    """The last decision."""
    state = model.state.adapting
    assert state is not None
    assert state.decision is not None
    return state.decision


def wait_until(holds: Callable[[], bool], most_s: float = 60.0) -> None:
    until_s = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def goes_to(model: DeployedModel, x: np.ndarray, digest: str, exit: str = "") -> int:
    """How many requests it takes until a SubNet answers, whole if no exit is given."""
    whole = str(model.pool.bundle.manifest.by_digest[digest].config["exit"])
    until_s, count = time.monotonic() + 60, 0
    while served_by(model, x, 1) != [(digest, exit or whole)]:
        count += 1
        assert time.monotonic() < until_s
    return count


def served_by(model: DeployedModel, x: np.ndarray, requests: int) -> list[tuple[str, str]]:
    found = [model.infer(x) for _ in range(requests)]
    return [(one.subnet, one.exits[0]) for one in found]


def test_it_goes_down_at_once_under_load_and_up_after_the_wait(
    written: Written, load: Load, model: DeployedModel
) -> None:
    goes_to(model, written.x, written.large)
    load.factor = SLOW
    assert goes_to(model, written.x, written.small) <= 6
    load.factor, calm_s = 1.0, load.now_s
    goes_to(model, written.x, written.large)
    assert load.now_s - calm_s >= DWELL_S
    assert decided(model).step == "up"
    assert "a better variant has fitted for" in decided(model).reason


def test_the_state_tells_load_device_and_reason(written: Written, load: Load, model: DeployedModel) -> None:
    load.factor = SLOW
    goes_to(model, written.x, written.small)
    served_by(model, written.x, 4)
    wait_until(lambda: model.state.adapting is not None and model.state.adapting.load is not None)
    state = model.state.adapting
    assert state is not None
    assert 0 <= (state.load or 0.0) <= 1
    assert state.forecast is not None
    assert state.forecast.methods[0] == "as now"
    assert state.memory_available_mib is not None
    assert state.device is not None
    assert state.battery == state.device.battery
    assert state.slow_down[0] == pytest.approx(SLOW, rel=0.1)
    assert state.reason is not None
    assert "budget 40 ms" in state.reason or "no other variant" in state.reason
    assert state.limits == model.limits


def test_other_limits_hold_from_the_next_request_on(written: Written, model: DeployedModel) -> None:
    goes_to(model, written.x, written.large)
    model.set_limits(budget_ms=SMALL_MS * 1.6)
    assert served_by(model, written.x, 1)[0][0] == written.small
    assert model.limits.budget_ms == SMALL_MS * 1.6
    assert model.limits.quantile == 0.95
    for changes, line in (
        ({"budget_ms": -1.0}, "limits: .*budget_ms: Input should be greater than 0"),
        ({"budgets_ms": 1.0}, "limits: .*budgets_ms: Extra inputs"),
        ({"energy_mj": 1.0}, "limit of energy: the table knows no energy"),
    ):
        with pytest.raises(AdaptiveError, match=line):
            model.set_limits(**changes)
    assert model.limits.budget_ms == SMALL_MS * 1.6


def test_the_state_tells_the_budget_of_each_run(written: Written, model: DeployedModel) -> None:
    assert model.state.budget_ms == BUDGET_MS
    model.set_limits(budget_ms=SMALL_MS * 1.6)
    assert model.state.budget_ms == SMALL_MS * 1.6
    with adaptive_runtime.load(written.folder, BUDGET_MS, prepares=False) as plain:
        assert plain.state.budget_ms is None, "it does not adapt"


def test_the_budget_is_that_of_a_request_however_many_runs_it_has(written: Written, model: DeployedModel) -> None:
    goes_to(model, written.x, written.large)
    x_NCHW = np.repeat(written.x, 4, axis=0)  # 4 runs of 16 or 5 ms in 40 ms
    wait_until(lambda: model.infer(x_NCHW).subnet == written.small)
    answer = model.infer(x_NCHW)
    assert answer.subnets == (written.small,) * 4
    assert len(answer.exits) == len(answer.classes) == len(answer.confidence) == 4
    assert answer.latency_ms < BUDGET_MS
    for row in answer.logits:
        np.testing.assert_array_equal(row, answer.logits[0])


def test_a_request_with_little_time_gets_a_faster_variant_for_itself_alone(
    written: Written, model: DeployedModel
) -> None:
    goes_to(model, written.x, written.large)
    hurried = model.infer(written.x, budget_ms=SMALL_MS * 1.6)
    assert hurried.subnet == written.small
    assert decided(model).step == "hurry"
    assert served_by(model, written.x, 1)[0][0] == written.large


def test_where_all_requests_have_little_time_the_policy_goes_on_deciding_for_the_others(
    written: Written, load: Load, tmp_path: Path
) -> None:
    file = tmp_path / "decisions.jsonl"
    with adapting(written, load, decisions=file) as model:
        goes_to(model, written.x, written.large)
        load.factor = SLOW
        wait_until(lambda: model.infer(written.x, budget_ms=0.9 * BUDGET_MS).subnet == written.small)
        wait_until(lambda: model.state.serving.digest == written.small)
        load.factor = 1.0
        wait_until(lambda: model.infer(written.x, budget_ms=0.9 * BUDGET_MS).subnet == written.large)
        assert model.state.serving.digest == written.large
        assert model.adaptation is not None
        table, policy = model.adaptation.variants.table, model.adaptation.policy
    steps = {line.decision.step for section in read_log(file) for line in section.decisions}
    assert {"start", "down", "up"} <= steps
    assert replay(file, table, policy) > 0


def test_runs_behind_a_slow_one_make_up_for_it(written: Written, load: Load, model: DeployedModel) -> None:
    model.set_limits(budget_ms=4 * BUDGET_MS)
    x_NCHW = np.repeat(written.x, 4, axis=0)
    wait_until(lambda: set(model.infer(x_NCHW).subnets) == {written.large})
    before = decided(model)
    load.factor, answered = 4.0, model.state.requests
    hurried = model.infer(x_NCHW)  # large alone would take 256 ms of 160
    assert model.state.requests == answered + 1
    assert hurried.subnets[0] == written.large
    assert written.small in hurried.subnets
    assert decided(model).step == "hurry"
    assert "are left for each run of the request" in decided(model).reason
    assert before.step != "hurry"


def test_a_subnet_that_fails_is_never_chosen_again(
    written: Written, load: Load, model: DeployedModel, tmp_path: Path
) -> None:
    class Broken:
        def io_binding(self) -> Any:
            raise RuntimeError("the kernel has crashed")

    goes_to(model, written.x, written.large)
    model.pool.answerer(Variant(written.large)).parts[0].value = Broken()
    answers = served_by(model, written.x, 20)
    load.spend(1e3 * DWELL_S)
    answers += served_by(model, written.x, 20)
    assert {subnet for subnet, _ in answers} == {written.small}
    assert list(model.state.taken_out) == [written.large]
    assert decided(model).name == written.small


def test_no_request_of_four_threads_is_lost_while_the_load_changes(
    written: Written, load: Load, tmp_path: Path
) -> None:
    found: list[list[Any]] = [[] for _ in range(4)]
    over = threading.Event()
    file = tmp_path / "decisions.jsonl"
    with adapting(written, load, decisions=file) as model:

        def ask(mine: list[Any]) -> None:
            while not over.is_set() or len(mine) < 10:
                mine.append(model.infer(written.x))

        with beside(*(partial(ask, mine) for mine in found), over=over):
            for factor in (1.0, SLOW, 1.0, SLOW):
                load.factor, serving = factor, Variant(written.small if factor == SLOW else written.large)
                wait_until(lambda serving=serving: model.state.serving == serving)  # type: ignore[misc]
        state = model.state
        assert model.adaptation is not None
        table, policy = model.adaptation.variants.table, model.adaptation.policy
    assert sum(map(len, found)) == state.requests > 40
    assert state.switches >= 3
    assert not state.taken_out
    sections = read_log(file)
    assert replay(file, table, policy) == sum(len(section.decisions) for section in sections) > 20


def test_a_request_does_not_wait_for_what_is_loaded(written: Written, load: Load) -> None:
    with adapting(written, load, policy=lambda best: FixedChoice(best, 0)) as model:
        large = model.pool.answerer(Variant(written.large))
        (part,) = large.parts
        loads, answered = part.loads, threading.Event()

        def slowly() -> Any:
            answered.wait(60)
            return loads()

        assert served_by(model, written.x, 1)[0][0] == written.large
        model.use(written.small)
        part.value, part.loads = None, slowly
        answers = [model.infer(written.x) for _ in range(10)]
        assert model.state.standby == Variant(written.large), "the requests were answered while it was being loaded"
        assert decided(model).name == written.large
        assert decided(model).meanwhile is not None
        assert {one.exits[0] for one in answers} == {written.exit}  # the best that is warm and in time
        answered.set()
        wait_until(lambda: model.state.standby is None)
        assert served_by(model, written.x, 1) == [(written.large, str(written.manifest.subnets[0].config["exit"]))]


def test_a_chooser_comes_before_the_adaptation(written: Written, load: Load) -> None:
    with adapting(written, load) as model:
        model.chooser = lambda _: Variant(written.small)
        model.use(written.small)
        assert {subnet for subnet, _ in served_by(model, written.x, 4)} == {written.small}
        assert model.adaptation is not None
        assert model.adaptation.state.decision is None


def test_what_cannot_adapt_is_told_in_one_line(written: Written, tmp_path: Path) -> None:
    with pytest.raises(AdaptiveError, match="adapting: no budget; give budget_ms, within which"):
        adaptive_runtime.load(written.folder, adapts=True)
    with pytest.raises(AdaptiveError, match=r"limits: .*quantile: Input should be less than 1"):
        adaptive_runtime.load(written.folder, 5.0, adapts=AdaptingOptions(quantile=1.5))
    with pytest.raises(AdaptiveError, match="limit of energy: the table knows no energy"):
        adaptive_runtime.load(written.folder, 5.0, adapts=AdaptingOptions(energy_mj=1.0))
    with pytest.raises(AdaptiveError, match=r"nowhere/decisions\.jsonl: cannot be written"):
        adaptive_runtime.load(
            written.folder, 5.0, adapts=AdaptingOptions(decisions=tmp_path / "nowhere/decisions.jsonl")
        )
    with pytest.raises(AdaptiveError, match="adapting: decisions_mib 0, every_s 1; allowed: both above 0"):
        AdaptingOptions(decisions_mib=0)
    with (
        adaptive_runtime.load(written.folder, prepares=False) as model,
        pytest.raises(AdaptiveError, match="the model does not adapt; load it with adapts=True"),
    ):
        model.set_limits(budget_ms=1.0)
