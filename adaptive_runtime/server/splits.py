"""SubNets over several devices as a service has them: plan, links and changes, and a single SubNet as the served model.

Legend: N samples, C channels, H height, W width.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import takewhile
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.devices import COORDINATOR
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.process import resident_mib
from adaptive_runtime.bundle.bundles import BundleFormat, TakenSamples
from adaptive_runtime.exits.decisions import TopProbability
from adaptive_runtime.model.answers import ModelAnswer, ModelState
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.offload.placed import LEAST_DEADLINE_MS, PlacedSubNet, PlannedSplit
from adaptive_runtime.offload.rows import PlacedSubNets
from adaptive_runtime.offload.split import PlanChange, SplitEvent, SplitOptions, SplitSubNet
from adaptive_runtime.pool import Variant
from adaptive_runtime.server.options import VERSION_DIGITS, SplitServiceOptions
from adaptive_runtime.server.protocol import InferenceFormat
from adaptive_runtime.server.recent import LoggedDecision
from adaptive_runtime.server.served import DeviceReport, DevicesReport, LoadWatch, ServedModel

FORM: BundleFormat = "onnx"
Row = TypeVar("Row", PlanChange, SplitEvent)


def split_served(options: SplitServiceOptions) -> AbstractContextManager[ServedModel]:
    """The SubNet of a folder, open on the coordinator; devices join when they are reached.

    AdaptiveError at once: it cannot be opened or served.
    """
    before_mib = resident_mib() or 0.0
    planned = PlannedSplit.open(options.folder)
    return _served(planned, _format(planned.split), options, before_mib)


@contextmanager
def _served(
    planned: PlannedSplit, form: InferenceFormat, options: SplitServiceOptions, before_mib: float
) -> Iterator[ServedModel]:
    """The served model. before_mib: memory of the process before the SubNet was opened."""
    watch = LoadWatch(options.sensors_root, hit_rate=options.hit_rate)
    with planned.placed(options.devices, SplitOptions(coding=options.coding)) as placed, watch.running():
        model = _SplitModel(placed, max(0.0, (resident_mib() or 0.0) - before_mib))
        yield ServedModel(
            infer=model.infer,
            subnets=lambda: (model.serving.digest,),
            state=lambda: model.state,
            works=lambda: True,
            load=watch,
            format=form,
            version=model.serving.digest,
            devices=PlacedDevices({model.serving.digest: placed}),
        )


class _SplitModel:
    """Answers a service's requests. used_mib: memory of the SubNet on the coordinator. Several threads may call `infer`."""

    def __init__(self, placed: PlacedSubNet, used_mib: float) -> None:
        self._network, self._used_mib = placed.network, used_mib
        self.serving = Variant(placed.split.subnet.digest[:VERSION_DIGITS])
        self._exit, self._sure = placed.split.subnet.answer, TopProbability()
        self._latency_ms: float | None = None

    def infer(self, x_NCHW: NDArray[np.float32], until_s: float, subnet: str | None = None) -> ModelAnswer:
        """Answer samples (N, C, H, W), several of which are in flight at once. until_s: of the monotonic clock.

        subnet: always this one. AdaptiveError: the coordinator has failed.
        """
        start_s = time.perf_counter()
        deadline_ms = max(1e3 * (until_s - time.monotonic()), LEAST_DEADLINE_MS)
        waiting = [self._network.submit(x_NCHW[at : at + 1], deadline_ms) for at in range(len(x_NCHW))]
        answers = [one.result() for one in waiting]
        logits_NK = np.concatenate([one.answer for one in answers])
        classes, confidence, _ = self._sure.step(logits_NK.astype(float), ())
        self._latency_ms = latency_ms = (time.perf_counter() - start_s) * 1e3
        devices = tuple(dict.fromkeys(name for one in answers for name in one.devices))
        subnets, exits = ((one,) * len(answers) for one in (self.serving.digest, self._exit))
        return ModelAnswer(classes, logits_NK, subnets, exits, confidence, latency_ms, (FORM,) * len(answers), devices)

    @property
    def state(self) -> ModelState:
        """The state with the single SubNet."""
        return ModelState(
            serving=self.serving,
            standby=None,
            warm=(self.serving,),
            taken_out={},
            requests=self._network.counts.answered,
            switches=0,
            latency_ms=self._latency_ms,
            used_mib=self._used_mib,
            budget_mib=None,
            format=FORM,
        )


def _format(split: SplitSubNet) -> InferenceFormat:
    """Format for one image at a time. AdaptiveError: the network has other inputs or outputs."""
    taken, given = split.subnet.shapes[split.subnet.input], split.subnet.shapes[split.subnet.answer]
    if len(taken) != 4 or len(given) != 2 or taken[0] != 1 or given[0] != 1:
        got = f"takes {list(taken)} and gives {list(given)}"
        next_step = "run it by `autotailor-runtime split` or in Python"
        raise AdaptiveError("SubNet to be served", got, allowed="[1, C, H, W] and [1, K]", next_step=next_step)
    return InferenceFormat(TakenSamples(taken[1:]), given[1], FORM)


def placed_devices(model: Callable[[], DeployedModel]) -> "PlacedDevices | None":
    """Reports about other devices; a model that has them is never replaced by another one. None: it has none."""
    placed = model().placed
    if not isinstance(placed, PlacedSubNets) or not placed.subnets:
        return None
    return PlacedDevices(placed.subnets, lambda: model().state.serving)


class PlacedDevices:
    """The `DevicesSource` of a served model with SubNets over several devices, by digest.

    serving: the variant of a bundle that serves, maybe on the coordinator; None: a single SubNet, which always serves.
    """

    def __init__(self, subnets: Mapping[str, PlacedSubNet], serving: Callable[[], Variant] | None = None) -> None:
        self._subnets, self._serving = subnets, serving
        self._latest: dict[str, tuple[PlanChange | None, SplitEvent | None]] = {}

    @property
    def now(self) -> DevicesReport:
        """The plan of the serving SubNet, or the coordinator; for devices the joint knowledge of all SubNets."""
        first, serving = next(iter(self._subnets.values())), None if self._serving is None else self._serving()
        shown = first if serving is None else self._subnets.get(serving.digest, first)
        predicted, is_over = shown.predicted, serving is None or serving.placed
        networks = [one.network for one in self._subnets.values()]
        counts = [network.counts for network in networks]
        return DevicesReport(
            plan=predicted.plan.devices if is_over else (COORDINATOR,),
            plan_ms=predicted.plan_ms if is_over else None,
            coordinator_ms=predicted.coordinator_ms,
            slow_down=shown.choice.slow_down,
            changes=sum(one.choice.changed for one in self._subnets.values()),
            on_coordinator=sum(one.on_coordinator for one in counts),
            wrong=sum(one.wrong for one in counts),
            devices=tuple(self._device(name) for name in dict.fromkeys(key for one in networks for key in one.states)),
        )

    def news(self) -> tuple[LoggedDecision, ...]:
        """Changes of plan, and devices that came or went, in the order of their times."""
        found = list[LoggedDecision]()
        for digest, one in self._subnets.items():
            change, event = self._latest.get(digest, (None, None))
            changes, events = _after(one.choice.changes, change), _after(deque(one.network.events), event)
            self._latest[digest] = (changes[-1] if changes else change, events[-1] if events else event)
            whose = "" if self._serving is None else f"SubNet {digest}: "
            for change in changes:
                reason = f"{whose}{change.reason}"
                found.append(LoggedDecision(at_s=change.time_s, step="plan", name=change.taken.line, reason=reason))
            for event in events:
                if event.state != "plan":
                    reason = f"for {whose}{event.reason}" if whose else event.reason
                    found.append(LoggedDecision(at_s=event.time_s, step=event.state, name=event.device, reason=reason))
        return tuple(sorted(found, key=lambda described: described.at_s))

    def _device(self, name: str) -> DeviceReport:
        """State of the device: the first non-'in' state over all SubNets, else 'in'."""
        networks = [one.network for one in self._subnets.values() if name in one.network.states]
        states = [network.states[name] for network in networks]
        state, reason = next((one for one in states if one[0] != "in"), states[0])
        link = next((links[name] for links in (network.links for network in networks) if name in links), None)
        return DeviceReport(
            name=name,
            state=state,
            reason=reason,
            up_mbps=None if link is None else link.up_mbps,
            down_mbps=None if link is None else link.down_mbps,
            round_trip_ms=None if link is None else link.round_trip_ms,
            answered=sum(network.counts.by_device.get(name, 0) for network in networks),
        )


def _after(rows: deque[Row], last: Row | None) -> list[Row]:
    """The rows after one of them; all rows if it has been dropped meanwhile."""
    return list(takewhile(lambda one: one is not last, reversed(tuple(rows))))[::-1]
