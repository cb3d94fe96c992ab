"""A SubNet over several devices as a served model: requests, its plan, its links, and changes.

Legend: N samples, C channels, H height, W width, K classes.

Reports of a service about a bundle whose SubNets may run over several devices: plan, links, and changes.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.devices import HOME
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.process import resident_mib
from adaptive_runtime.bundle.bundles import BundleFormat, TakenSamples
from adaptive_runtime.exits.decisions import TopProbability
from adaptive_runtime.model.answers import ModelAnswer, ModelState
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.offload.placed import LEAST_DEADLINE_MS, PlacedSubNet
from adaptive_runtime.offload.rows import PlacedSubNets
from adaptive_runtime.offload.split import (
    EnvelopePlacements,
    PlanChange,
    PlannedSplit,
    SplitEvent,
    SplitNetwork,
    SplitOptions,
)
from adaptive_runtime.pool import Variant
from adaptive_runtime.server.options import VERSION_DIGITS, SplitServiceOptions
from adaptive_runtime.server.protocol import InferenceFormat
from adaptive_runtime.server.recent import ToldDecision
from adaptive_runtime.server.served import DevicesTold, DeviceTold, LoadWatch, ServedModel, device_told, rows_after

FORM: BundleFormat = "onnx"


def split_served(options: SplitServiceOptions) -> AbstractContextManager[ServedModel]:
    """The SubNet, open on the coordinator; devices join when they are reached.

    AdaptiveError at once: it cannot be opened or served.
    """
    before_mib = resident_mib() or 0.0
    planned = PlannedSplit.open(options.folder)
    return _served(planned, _format(planned), options, before_mib)


@contextmanager
def _served(
    planned: PlannedSplit, form: InferenceFormat, options: SplitServiceOptions, before_mib: float
) -> Iterator[ServedModel]:
    """The served model. before_mib: memory of the process before the SubNet was opened."""
    network, choice = planned.network(options.devices, SplitOptions(coding=options.coding))
    with network, LoadWatch(options.sensors_root, hit_rate=options.hit_rate).running() as watch:
        model = SplitModel(planned, network, choice, max(0.0, (resident_mib() or 0.0) - before_mib))
        yield ServedModel(
            infer=model.infer,
            subnets=lambda: (model.state.serving.digest,),
            state=lambda: model.state,
            works=lambda: True,
            load=watch,
            format=form,
            version=planned.split.subnet.digest[:VERSION_DIGITS],
            devices=model,
        )


class SplitModel:
    """Answers a service's requests. used_mib: memory of the SubNet on the coordinator. Several threads may call `infer`."""

    def __init__(
        self, planned: PlannedSplit, network: SplitNetwork, choice: EnvelopePlacements, used_mib: float
    ) -> None:
        self._network, self._choice, self._used_mib = network, choice, used_mib
        self._serving = Variant(planned.split.subnet.digest[:VERSION_DIGITS])
        self._exit, self._sure = planned.split.subnet.answer, TopProbability()
        self._latency_ms: float | None = None
        self._told_change: PlanChange | None = None
        self._told_event: SplitEvent | None = None

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
        exits = (self._exit,) * len(answers)
        subnets = (self._serving.digest,) * len(answers)
        formats = (FORM,) * len(answers)
        return ModelAnswer(classes, logits_NK, subnets, exits, confidence, latency_ms, formats, devices)

    @property
    def state(self) -> ModelState:
        """The state with the single SubNet."""
        return ModelState(
            serving=self._serving,
            standby=None,
            warm=(self._serving,),
            taken_out={},
            requests=self._network.counts.answered,
            switches=0,
            latency_ms=self._latency_ms,
            used_mib=self._used_mib,
            budget_mib=None,
            format=FORM,
        )

    @property
    def now(self) -> DevicesTold:
        """Plan, links and devices."""
        links, counts, number = self._network.links, self._network.counts, self._choice.number
        found_ms = self._choice.latencies_ms(links)
        return DevicesTold(
            plan=self._choice.plans.plans[number].devices,
            plan_ms=found_ms.get(number),
            home_ms=found_ms[0],
            slow_down=self._choice.slow_down,
            changes=self._choice.changed,
            at_home=counts.at_home,
            wrong=counts.wrong,
            devices=tuple(
                device_told(name, state, links.get(name), counts.by_device.get(name, 0))
                for name, state in self._network.states.items()
            ),
        )

    def news(self) -> tuple[ToldDecision, ...]:
        """Changes of plan, and devices that came or went, in the order of their times."""
        changes = rows_after(tuple(self._choice.changes), self._told_change)
        events = rows_after(self._network.events, self._told_event)
        self._told_change = changes[-1] if changes else self._told_change
        self._told_event = events[-1] if events else self._told_event
        found = [
            *(ToldDecision(at_s=one.time_s, step="plan", name=one.taken.line, reason=one.reason) for one in changes),
            *(
                ToldDecision(at_s=one.time_s, step=one.state, name=one.device, reason=one.reason)
                for one in events
                if one.state != "plan"
            ),
        ]
        return tuple(sorted(found, key=lambda one: one.at_s))


def _format(planned: PlannedSplit) -> InferenceFormat:
    """Format for one image at a time. AdaptiveError: the network has other inputs or outputs."""
    subnet = planned.split.subnet
    taken, given = subnet.shapes[subnet.input], subnet.shapes[subnet.answer]
    if len(taken) != 4 or len(given) != 2 or taken[0] != 1 or given[0] != 1:
        got = f"takes {list(taken)} and gives {list(given)}"
        next_step = "run it by `autotailor-runtime split` or in Python"
        raise AdaptiveError("SubNet to be served", got, allowed="[1, C, H, W] and [1, K]", next_step=next_step)
    return InferenceFormat(TakenSamples(taken[1:]), given[1], FORM)


def placed_devices(model: Callable[[], DeployedModel]) -> "PlacedDevices | None":
    """Reports about other devices; a model that has them is never replaced by another one. None: it has none."""
    placed = model().placed
    return PlacedDevices(model, placed.subnets) if isinstance(placed, PlacedSubNets) and placed.subnets else None


class PlacedDevices:
    """The `DevicesSource` of a served model with SubNets over several devices."""

    def __init__(self, model: Callable[[], DeployedModel], subnets: Mapping[str, PlacedSubNet]) -> None:
        self._model, self._subnets = model, subnets
        self._told_changes: dict[str, PlanChange] = {}
        self._told_events: dict[str, SplitEvent] = {}

    @property
    def now(self) -> DevicesTold:
        """The plan of the serving SubNet, or the coordinator; for devices the joint knowledge of all SubNets."""
        serving = self._model().state.serving
        shown = self._subnets.get(serving.digest) or next(iter(self._subnets.values()))
        choice, networks = shown.choice, [one.network for one in self._subnets.values()]
        found_ms = choice.latencies_ms(shown.network.links)
        counts = [network.counts for network in networks]
        return DevicesTold(
            plan=choice.plans.plans[choice.number].devices if serving.placed else (HOME,),
            plan_ms=found_ms.get(choice.number) if serving.placed else None,
            home_ms=found_ms[0],
            slow_down=choice.slow_down,
            changes=sum(one.choice.changed for one in self._subnets.values()),
            at_home=sum(one.at_home for one in counts),
            wrong=sum(one.wrong for one in counts),
            devices=tuple(self._device(name) for name in dict.fromkeys(key for one in networks for key in one.states)),
        )

    def news(self) -> tuple[ToldDecision, ...]:
        """Changes of plan, and devices that came or went, in the order of their times."""
        found = list[ToldDecision]()
        for digest, one in self._subnets.items():
            changes = rows_after(tuple(one.choice.changes), self._told_changes.get(digest))
            events = rows_after(one.network.events, self._told_events.get(digest))
            if changes:
                self._told_changes[digest] = changes[-1]
            if events:
                self._told_events[digest] = events[-1]
            for change in changes:
                reason = f"SubNet {digest}: {change.reason}"
                found.append(ToldDecision(at_s=change.time_s, step="plan", name=change.taken.line, reason=reason))
            for event in events:
                if event.state != "plan":
                    reason = f"for SubNet {digest}: {event.reason}"
                    found.append(ToldDecision(at_s=event.time_s, step=event.state, name=event.device, reason=reason))
        return tuple(sorted(found, key=lambda told: told.at_s))

    def _device(self, name: str) -> DeviceTold:
        """State of the device: the first non-'in' state over all SubNets, else 'in'."""
        networks = [one.network for one in self._subnets.values() if name in one.network.states]
        states = [network.states[name] for network in networks]
        links = [network.links[name] for network in networks if name in network.links]
        answered = sum(network.counts.by_device.get(name, 0) for network in networks)
        state = next((one for one in states if one[0] != "in"), states[0])
        return device_told(name, state, links[0] if links else None, answered)
