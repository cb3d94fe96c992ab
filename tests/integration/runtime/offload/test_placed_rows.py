"""A table with rows over devices: one decision chooses among them and the coordinator's, while devices come and go."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pytest

import adaptive_runtime
from adaptive_runtime import AdaptingOptions
from adaptive_runtime.base.errors import AdaptiveError, NotBackError
from adaptive_runtime.bundle.bundles import NetFigures, OpenBundle, SubNetMemory
from adaptive_runtime.model.adapting import Adaptation
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.model.estimate import FIRST_BACKOFF, ServedRun
from adaptive_runtime.model.serving import Fallbacks
from adaptive_runtime.model.variants import BundleVariants
from adaptive_runtime.offload.links import DeviceAddress, MeasuredLink
from adaptive_runtime.offload.placed import (
    HALF_S,
    FallbackTimes,
    NetworkRuntime,
    PlacedRun,
    PlacedSubNet,
    RunRatio,
    expected,
)
from adaptive_runtime.offload.rows import PlacedSubNets
from adaptive_runtime.offload.split import (
    COORDINATOR,
    LinkUse,
    PlacementPlans,
    PlannedPlacement,
    SendingPlan,
    SplitAnswer,
    SplitSubNet,
)
from adaptive_runtime.policy import RequestProgress, read_log, replay
from adaptive_runtime.pool import Variant, VariantError
from tasks.placement.bundled import CodedSubNet
from tests.support.agents.agent_processes import TOKEN
from tests.support.links.devices import are_in, serving
from tests.support.links.relay import address_of, relayed
from tests.support.runtime.bundled import answers_of_files, write_plain_bundle
from tests.support.runtime.placed import LARGE_MJ, SERVER, PlacedBundle, made_net, sample_images, write_placed_bundle
from tests.support.runtime.service_process import INFER, body, refused, served, soon
from tests.support.threads import beside

BUDGET_MS = 60_000.0
FRUGAL = "energy first"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> PlacedBundle:
    return write_placed_bundle(tmp_path_factory.mktemp("placed") / "bundle")


@pytest.fixture
def loaded(bundle: PlacedBundle, tmp_path: Path) -> Iterator[tuple[DeployedModel, DeviceAddress]]:
    """The bundle with a device that is in, which decides by energy, and a record of its decisions."""
    options = AdaptingOptions(decisions=tmp_path / "decisions.jsonl")
    with serving() as device:
        devices = {SERVER: device.address}
        with adaptive_runtime.load(bundle.folder, BUDGET_MS, adapts=options, policy=FRUGAL, devices=devices) as model:
            yield model, device.address


def test_the_table_has_rows_over_devices_beside_those_on_coordinator(bundle: PlacedBundle) -> None:
    manifest = bundle.manifest
    coordinator = BundleVariants.of(manifest, "onnx")
    every = BundleVariants.of(manifest, "onnx", placed=[bundle.large])
    assert every.variants == (*coordinator.variants, Variant(bundle.large, placed=True))
    row, table = len(coordinator.variants), every.table
    placement = manifest.subnets[0].placement
    assert placement is not None
    assert placement.sent_mj is not None
    assert table.names[row] == f"{bundle.large} over devices"
    assert (table.accuracy[row], table.latency_ms[row]) == (table.accuracy[0], placement.latency_ms)
    assert table.energy_mj is not None
    assert table.energy_mj[row] == LARGE_MJ * placement.coordinator_share + placement.sent_mj
    assert table.energy_mj[row] < table.energy_mj[1] < table.energy_mj[0]
    assert table.load_class is not None
    assert table.load_class[row] not in table.load_class[:row]
    assert every.coordinator_of == {row: 0}


def sent_bytes(bundle: PlacedBundle, requests: int = 8) -> float:
    """Of a request over the device, over a link that is so slow that fewer bytes count."""
    with serving() as device, relayed(device.url, up_mbps=2.0, down_mbps=2.0) as relay:
        devices = {SERVER: DeviceAddress(url=address_of(relay), token=TOKEN)}
        with adaptive_runtime.load(bundle.folder, BUDGET_MS, adapts=True, policy=FRUGAL, devices=devices) as model:
            assert soon(lambda: model.infer(bundle.x).devices == (SERVER,))
            model.infer(bundle.x)
            before = relay.bytes["up"]
            assert all(model.infer(bundle.x).devices == (SERVER,) for _ in range(requests))
            return (relay.bytes["up"] - before) / requests


@pytest.mark.long
def test_values_cross_in_the_coding_of_the_bundle_whose_rows_have_its_accuracy(
    bundle: PlacedBundle, tmp_path: Path
) -> None:
    coded = write_placed_bundle(tmp_path / "coded", "int8")
    placement, exact = (one.manifest.subnets[0].placement for one in (coded, bundle))
    assert placement is not None
    assert exact is not None
    assert (placement.coding, exact.coding, exact.accuracy) == ("int8", "fp32", None)
    assert placement.latency_ms < exact.latency_ms
    assert (placement.sent_mj or 0.0) < (exact.sent_mj or 0.0)
    table = BundleVariants.of(coded.manifest, "onnx", placed=[coded.large]).table
    assert table.accuracy[-1] == placement.accuracy
    split = SplitSubNet.open(coded.folder, placement.segments)
    plans = PlacementPlans.read(coded.folder / placement.plans, split).plans
    assert placement.accuracy == CodedSubNet(split, plans, "int8").accuracy(sample_images(), (16, 16)).share
    assert sent_bytes(coded) < 0.6 * sent_bytes(bundle)


def test_over_devices_a_subnet_has_the_figures_of_the_format_in_which_it_computes(bundle: PlacedBundle) -> None:
    large = bundle.manifest.subnets[0]
    memory = SubNetMemory(weights_mib=0.1, activations_mib=0.1)
    figures = NetFigures(accuracy={"validation": 0.25}, latency_ms=1.0, memory=memory)
    nets = {**large.nets, "onnx_int8": large.nets["onnx"].model_copy(update={"figures": figures})}
    run = bundle.manifest.runs["onnx"]
    rows = (large.model_copy(update={"nets": nets}), *bundle.manifest.subnets[1:])
    manifest = bundle.manifest.model_copy(update={"subnets": rows, "runs": {"onnx": run, "onnx_int8": run}})
    found = BundleVariants.of(manifest, "onnx_int8", placed=[bundle.large])
    row = found.variants.index(Variant(bundle.large, placed=True))
    assert found.table.accuracy[found.coordinator_of[row]] == 0.25
    assert found.table.accuracy[row] == large.first_accuracy
    assert found.table.memory_mib_V[row] == large.memory.total_mib
    assert found.table.energy_mj is None or found.table.energy_mj[row] < LARGE_MJ


def test_one_decision_chooses_a_subnet_over_devices_and_says_why(
    bundle: PlacedBundle, loaded: tuple[DeployedModel, DeviceAddress], tmp_path: Path
) -> None:
    model, _ = loaded
    assert soon(lambda: model.infer(bundle.x).devices == (SERVER,))
    found = model.infer(bundle.x)
    assert model.state.serving == Variant(bundle.large, placed=True)
    expected = answers_of_files(bundle.manifest, bundle.folder, bundle.x)[bundle.large, None]
    assert np.abs(found.logits - expected).max() <= 1e-4 * np.abs(expected).max()
    adaptation = model.adaptation
    assert adaptation is not None
    rows = read_log(tmp_path / "decisions.jsonl")[0].decisions
    (chosen,) = [
        one.decision for one in rows if one.decision.step in ("start", "up") and "devices" in one.decision.name
    ]
    assert chosen.name == f"{bundle.large} over devices"
    assert f"({SERVER} 0" in chosen.reason
    assert "Mbit/s, round trip" in chosen.reason
    model.close()
    assert replay(tmp_path / "decisions.jsonl", adaptation.variants.table, adaptation.policy) == len(rows)


class DecidedRows(NamedTuple):
    """What decides, the row of a SubNet on the coordinator and that over the device, and all rows but the latter."""

    adaptation: Adaptation
    coordinator: int
    over: int
    but_over: frozenset[int]

    def served(self, row: int, spent_ms: float) -> None:
        """One request by a row, which took so long."""
        run = ServedRun(self.adaptation.variants.variants[row], ("last",), 1.0)
        self.adaptation.served([run], RequestProgress(1, 0, spent_ms=spent_ms))


@pytest.fixture
def decided(bundle: PlacedBundle) -> Iterator[DecidedRows]:
    """By accuracy, with a device that is in."""
    with serving() as device:
        devices = {SERVER: device.address}
        with adaptive_runtime.load(bundle.folder, BUDGET_MS, adapts=True, devices=devices) as model:
            adaptation = model.adaptation
            assert adaptation is not None
            rows = adaptation.variants.variants
            coordinator, over = (rows.index(Variant(bundle.large, placed=placed)) for placed in (False, True))
            but_over = frozenset(range(len(rows))) - {over}
            assert soon(lambda: adaptation.choose(without=but_over).within)
            yield DecidedRows(adaptation, coordinator, over, but_over)


def test_late_requests_on_coordinator_and_over_devices_make_each_more_careful_alone(decided: DecidedRows) -> None:
    adaptation, late_ms = decided.adaptation, 1.001 * BUDGET_MS
    before = adaptation.state.margins
    assert adaptation.choose(without=frozenset({decided.over})).variant == decided.coordinator
    for _ in range(3):
        decided.served(decided.coordinator, late_ms)
    then = adaptation.state.margins
    assert then[0] > 2 * before[0]
    assert then[1] == pytest.approx(before[1], rel=0.02)  # three requests elsewhere
    assert adaptation.choose(without=decided.but_over).variant == decided.over
    for _ in range(3):
        decided.served(decided.over, late_ms)
    assert adaptation.state.margins[1] > 2 * then[1]
    assert 0.9 * then[0] < adaptation.state.margins[0] < then[0]


def test_the_fastest_row_on_coordinator_that_is_ready_stands_in(decided: DecidedRows) -> None:
    adaptation, rows = decided.adaptation, range(len(decided.adaptation.variants.table))
    on_coordinator = sorted(set(rows) - {decided.over}, key=adaptation.variants.table.latency_ms.__getitem__)
    for count in range(len(on_coordinator)):
        adaptation.choose(cold=frozenset(on_coordinator[:count]))
        found = adaptation.fallback()
        assert found is not None
        assert found.row == on_coordinator[count]
        assert 0 < found.takes_ms < BUDGET_MS
    adaptation.choose(cold=frozenset(on_coordinator))
    assert adaptation.fallback() is None
    adaptation.choose()
    adaptation.set_limits(budget_ms=1e-3)
    assert adaptation.fallback() is None, "it would be late itself"


@pytest.mark.long
def test_a_device_that_was_late_where_nothing_keeps_the_limits_rests(decided: DecidedRows) -> None:
    adaptation = decided.adaptation
    for rest in (FIRST_BACKOFF, 2 * FIRST_BACKOFF):
        adaptation.set_limits(memory_mib=1e-6)  # no row keeps it, and the coordinator keeps the budget
        decision = adaptation.choose(without=decided.but_over)
        assert (decision.variant, decision.within) == (decided.over, False)
        decided.served(decided.over, 2 * BUDGET_MS)
        adaptation.set_limits(memory_mib=None)
        for _ in range(rest):
            assert adaptation.choose(without=frozenset({decided.coordinator})).variant != decided.over
            decided.served(decided.coordinator, 1.0)
        assert adaptation.choose(without=decided.but_over).variant == decided.over


def test_values_that_no_device_takes_are_answered_on_coordinator_and_nothing_is_taken_out(
    bundle: PlacedBundle, loaded: tuple[DeployedModel, DeviceAddress]
) -> None:
    model, _ = loaded
    assert soon(lambda: model.infer(bundle.x).devices == (SERVER,))
    broken = bundle.x.copy()
    broken[0, 0, 0, 0] = np.nan
    found = model.infer(broken)
    assert (found.devices, found.subnets) == ((), (bundle.large,))
    assert model.taken_out == {}
    assert soon(lambda: model.infer(bundle.x).devices == (SERVER,))


@pytest.mark.long
def test_rows_on_coordinator_answer_while_the_device_is_gone_and_it_is_chosen_again_when_it_is_back(
    bundle: PlacedBundle, token: Path, tmp_path: Path
) -> None:
    with serving() as device:
        port = urlsplit(device.url).port
        words = ["--budget-ms", str(BUDGET_MS), "--policy", FRUGAL, "--device", f"{SERVER}=127.0.0.1:{port}"]
        words += ["--device-token", f"{SERVER}={token}", "--niceness", "1"]
        with served(bundle.folder, tmp_path / "log", *words) as coordinator:
            statuses, over = list[int](), threading.Event()
            threads = [int(one.name) for one in Path(f"/proc/{coordinator.process.pid}/task").iterdir()]
            assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads} == {1}

            def told() -> dict[str, str]:
                response = coordinator.http.post(INFER, **body(bundle.x))
                statuses.append(response.status_code)
                parameters: dict[str, str] = response.json()["parameters"]
                return parameters

            assert soon(lambda: told().get("devices") == SERVER)
            with beside(lambda: [told() for _ in iter(over.is_set, True)], over=over):
                device.process.kill()
                device.process.wait()
                assert soon(lambda: told()["subnet"] == bundle.small)
            state = coordinator.state()
            assert [one["state"] for one in state["split"]["devices"]] != ["in"]
            assert state["split"]["plan"] == ["coordinator"]
            reasons = [one["reason"] for one in state["decisions"] if one["step"] == "down"]
            assert any(f"over devices (100.00%) cannot run: {SERVER} is out" in one for one in reasons)
            with serving("onnxruntime", "--port", str(port)):
                assert soon(lambda: told().get("devices") == SERVER)
                split = coordinator.state()["split"]
                assert SERVER in split["plan"]
                assert 'autotailor_device_in{device="server"} 1.0' in coordinator.http.get("/metrics").text
            assert set(statuses) == {200}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "devices: the model does not adapt; let it adapt, or leave devices out"),
        (
            ("--adapts", "--device", "board=127.0.0.1:2"),
            "device 'board': no plan of the bundle names it; allowed: server",
        ),
        (("--adapts", "--coding", "int8"), "--coding int8: is not of bundles; allowed: fp32"),
    ],
)
def test_devices_that_can_take_no_part_are_one_line(
    words: tuple[str, ...], line: str, bundle: PlacedBundle, token: Path
) -> None:
    given = ("--budget-ms", "5", "--device", f"{SERVER}=127.0.0.1:1", "--device-token", f"{SERVER}={token}")
    named = ("--device-token", f"board={token}") if "board=127.0.0.1:2" in words else ()
    assert line in refused("serve", str(bundle.folder), "--port", "0", *given, *words, *named)


def test_a_bundle_without_placements_is_refused(tmp_path: Path) -> None:
    net = made_net()
    write_plain_bundle(net, [net.max_config], tmp_path)
    devices = {SERVER: DeviceAddress(url="tcp://127.0.0.1:1", token=TOKEN)}
    with pytest.raises(AdaptiveError, match=r"has no SubNets for several devices; export it with export\.offload=true"):
        adaptive_runtime.load(tmp_path, 5.0, adapts=True, devices=devices)


def test_one_subnet_that_cannot_be_closed_leaves_no_other_one_open(
    bundle: PlacedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = {SERVER: DeviceAddress(url="tcp://127.0.0.1:1", token=TOKEN)}
    every = [PlacedSubNets.open(OpenBundle.open(bundle.folder), devices).subnets[bundle.large] for _ in range(3)]
    close = every[1].network.close

    def failing() -> None:
        close()
        raise OSError("this one fails")

    monkeypatch.setattr(every[1].network, "close", failing)
    with pytest.raises(OSError, match="this one fails"):
        PlacedSubNets(dict(zip("abc", every, strict=True))).close()
    for one in every:
        with pytest.raises(AdaptiveError, match="split network: is closed"):
            one.network.submit(bundle.x[:1], 5.0)


def test_samples_of_one_request_share_what_is_left_of_its_budget() -> None:
    now_s, given = [10.0], list[float | None]()

    def begin(x_NCHW: np.ndarray, within_ms: float | None) -> PlacedRun:
        given.append(within_ms)
        now_s[0] += 0.06
        return run_of(back(split_answer(x_NCHW)))

    # a fallback is for one run: the others wait
    runtime = NetworkRuntime(2, begin, 120.0, samples=5, fallback=FallbackTimes(120.0, 0.0), clock=lambda: now_s[0])
    for _ in range(3):
        runtime.run(np.zeros((2, 4), np.float32))
    assert given == pytest.approx([40.0, 30.0, 0.0])
    NetworkRuntime(1, begin, None, samples=2).run(np.zeros((1, 4), np.float32))
    assert given[3] is None


@pytest.mark.parametrize(
    ("takes_ms", "usual_ms", "after_ms"),
    [(4.0, 5.0, 6.0), (4.0, 8.0, 8.0), (4.0, 9.6, 6.0), (12.0, 3.0, 3.0), (12.0, 20.0, 0.0)],
)
def test_a_stand_in_begins_in_time_but_not_before_a_run_is_later_than_usual(
    takes_ms: float, usual_ms: float, after_ms: float
) -> None:
    assert FallbackTimes(takes_ms, usual_ms).after_ms(10.0) == after_ms


def test_a_run_gives_up_once_for_a_stand_in_and_its_answer_still_counts() -> None:
    x, used, left = np.zeros((1, 4), np.float32), list[SplitAnswer](), list[object]()
    for is_asked_again in (True, False):
        future: Future[SplitAnswer] = Future()
        run = PlacedRun(future, used.append, left.append)
        runtime = NetworkRuntime(1, partial(began, run), 10.0, samples=1, fallback=FallbackTimes(10.0, 0.0))
        with pytest.raises(NotBackError):
            runtime.run(x)
        assert not runtime.away.done()
        if not is_asked_again:
            runtime.leave()
            assert left == [future]
        future.set_result(split_answer(x + 1.0))
        if is_asked_again:
            assert (runtime.run(x) == 1.0).all()
            assert runtime.devices == (SERVER,)
        assert used[-1] is future.result()
    assert len(used) == 2


def split_answer(answer: np.ndarray, latency_ms: float = 60.0, devices: tuple[str, ...] = (SERVER,)) -> SplitAnswer:
    """As planned, in time."""
    return SplitAnswer(
        answer=answer, latency_ms=latency_ms, devices=devices, segments=(), on_coordinator=None, late=False
    )


def back(answer: SplitAnswer) -> "Future[SplitAnswer]":
    """A request that has its answer."""
    future: Future[SplitAnswer] = Future()
    future.set_result(answer)
    return future


def began(run: PlacedRun, _: np.ndarray, _within_ms: float | None) -> PlacedRun:
    """A run that has begun already."""
    return run


def run_of(future: "Future[SplitAnswer]") -> PlacedRun:
    """A run of which nobody learns anything."""
    return PlacedRun(future, lambda _: None, lambda _: None)


@pytest.mark.long
def test_a_stand_in_on_coordinator_answers_in_time_where_the_device_has_not(
    bundle: PlacedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        PlacedSubNet, "_deadline_ms", lambda *_: BUDGET_MS
    )  # the coordinator waits longer than the request may take
    with serving() as device, relayed(device.url) as relay:
        devices = {SERVER: DeviceAddress(url=address_of(relay), token=TOKEN)}
        with adaptive_runtime.load(bundle.folder, BUDGET_MS, adapts=True, policy=FRUGAL, devices=devices) as model:
            assert soon(lambda: model.infer(bundle.x).devices == (SERVER,))
            assert soon(lambda: Variant(bundle.small) in model.state.warm)
            assert isinstance(model.placed, PlacedSubNets)
            large, before = model.placed.subnets[bundle.large], model.state.adapting
            assert before is not None
            runs, answered = large.shared.ratios[frozenset({SERVER})].runs, large.network.counts.answered
            relay.hold()
            model.set_limits(budget_ms=2_000.0)
            found = model.infer(bundle.x[:1])
            assert (found.devices, found.subnets) == ((), (bundle.small,))
            expected = answers_of_files(bundle.manifest, bundle.folder, bundle.x)[bundle.small, None][:1]
            assert np.abs(found.logits - expected).max() <= 1e-4 * np.abs(expected).max()
            assert model.state.stood_in == 1
            after = model.state.adapting
            assert after is not None
            assert after.margins[1] > before.margins[1], "the device was late, though the request was not"
            relay.release()
            assert soon(lambda: large.network.counts.answered == answered + 1)
            assert soon(lambda: large.shared.ratios[frozenset({SERVER})].runs == runs + 1)


@pytest.mark.long
def test_what_a_run_shows_of_a_device_counts_for_all_subnets_over_it(tmp_path: Path) -> None:
    """Else each SubNet would have to find out by itself that the device, or the way to it, is slower than planned."""
    bundle = write_placed_bundle(tmp_path / "bundle", both=True)
    with serving() as device, relayed(device.url) as relay:
        devices = {SERVER: DeviceAddress(url=address_of(relay), token=TOKEN)}
        with closing(PlacedSubNets.open(OpenBundle.open(bundle.folder), devices)) as placed:
            large, small = placed.subnets[bundle.large], placed.subnets[bundle.small]
            assert are_in(large.network, SERVER)
            assert are_in(small.network, SERVER)
            before, _ = small.expected(1.0, 0.0), large.expected(1.0, 0.0)
            assert before is not None
            assert before.mean_ms == before.planned_ms
            relay.delay_ms = 1000.0
            large.runs(BUDGET_MS, 1).run(bundle.x)
            after = small.expected(1.0, 0.0)
            assert after is not None
            assert after.mean_ms > 1.5 * after.planned_ms
            assert after.planned_ms > 1.5 * before.planned_ms, "the link is measured for both"


def test_a_run_says_nothing_of_devices_that_it_did_not_run_on(
    bundle: PlacedBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that became slow is left after a while: until then runs are not those that are expected."""
    with serving() as device:
        placed = PlacedSubNets.open(OpenBundle.open(bundle.folder), {SERVER: device.address})
        with closing(placed):
            large = placed.subnets[bundle.large]
            assert are_in(large.network, SERVER)
            for devices, counts in (((COORDINATOR, "another"), False), ((COORDINATOR, SERVER), True)):
                slow = back(split_answer(bundle.x, latency_ms=1e6, devices=devices))
                monkeypatch.setattr(large.network, "submit", lambda *_, slow=slow: slow)
                assert large.expected(1.0, 0.0) is not None
                large.runs(BUDGET_MS, 1).run(bundle.x)
                after = large.expected(1.0, 0.0)
                assert after is not None
                assert (after.mean_ms > 10 * after.planned_ms) == counts


def test_runs_that_take_longer_than_expected_count_until_they_are_long_ago() -> None:
    now_s = [0.0]
    ratio = RunRatio(lambda: now_s[0])
    assert ratio.now == (1.0, 0.0)
    ratio.add(3.0)
    assert ratio.now == (3.0, 0.0)
    now_s[0] = HALF_S
    assert ratio.now == (2.0, 1.0), "as it was, or as planned, with the same probability"
    now_s[0] = 20 * HALF_S
    assert ratio.now == pytest.approx((1.0, 0.0), abs=0.01)
    now_s[0] = HALF_S
    ratio.add(1.0)
    mean, deviation = ratio.now
    assert (1.0 < mean < 3.0, deviation > 0.0) == (True, True)


def test_later_runs_are_compared_with_the_plan_and_not_with_runs_before_them() -> None:
    use = LinkUse(messages=1, up_bytes=125_000, down_bytes=0)
    plan = PlannedPlacement(devices=(COORDINATOR, SERVER), coordinator_ms=2.0, others_ms=1.0, links={SERVER: use})
    links = {SERVER: MeasuredLink(up_mbps=10.0, down_mbps=10.0, round_trip_ms=2.0)}
    found = expected(SendingPlan(plan, "fp32", 105.0), links, 0.0, (3.0, 0.5))
    assert (found.planned_ms, found.mean_ms, found.deviation_ms) == pytest.approx((105.0, 315.0, 52.5))


def test_the_answer_of_a_stand_in_is_kept_until_the_device_is_late() -> None:
    with closing(Fallbacks()) as stand_ins:
        assert stand_ins.beside(Future(), time.monotonic(), lambda: 3) == 3
        away: Future[int] = Future()
        over = threading.Event()

        def standing_in() -> int:
            away.set_result(1)
            assert over.wait(60)
            return 3

        assert stand_ins.beside(away, time.monotonic(), standing_in) is None, "it runs to its end for nothing"
        over.set()
        with closing(Fallbacks()) as others:
            slow: Future[int] = Future()
            asked = threading.Timer(0.1, slow.set_result, (1,))
            asked.start()
            assert others.beside(slow, time.monotonic() + 60, lambda: 3) is None, "the device is in time"
        with pytest.raises(VariantError, match="broken"):
            stand_ins.beside(Future(), time.monotonic(), failing)


def failing() -> int:
    raise VariantError("broken")
