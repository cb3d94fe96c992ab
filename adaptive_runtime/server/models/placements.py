"""Reports of a service about a bundle whose SubNets may run over several devices: plan, links, and changes."""

from collections.abc import Callable, Mapping

from adaptive_runtime.base.devices import HOME
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.offload.placed import PlacedSubNet, PlacedSubNets
from adaptive_runtime.offload.split import PlanChange, SplitEvent
from adaptive_runtime.server.models.served import DevicesTold, DeviceTold, device_told, rows_after
from adaptive_runtime.server.recent import ToldDecision


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
