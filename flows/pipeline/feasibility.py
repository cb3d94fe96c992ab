"""`profile`: a network's smallest and largest SubNet on devices, and the size that each budget allows, before any work."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import BaseModel
from torch import nn

import conf
from flows.config.devices import DeviceProfile
from flows.config.validate import config_groups, nearest, validate
from flows.pipeline.devices import Devices
from profiling_agents.client import AgentClient
from profiling_agents.startup import TOKEN_VARIABLE
from tasks.base.errors import UserError
from tasks.measuring.feasibility import AskedDevice, Example, Feasibility, compiled, measured

GROUP = "device"
OPEN = "???"
"""A value in a file of conf/device/ that the user has to give."""
ADDRESSES = ("http://", "https://")
CLOSING_S = 1.0
"""Time [s] that is kept for the end of agents started here."""

GivenDevices = str | Sequence[str] | Mapping[str, DeviceProfile | Mapping[str, Any]]


def profile(
    model: nn.Module | str | Path,
    example: Example | None = None,
    devices: GivenDevices = ("ncnn",),
    budgets_ms: float | Sequence[float] | None = None,
    *,
    limit_s: float = 10.0,
) -> Feasibility:
    """Answer whether budgets can be met, before anything is trained: latencies of the largest and the smallest SubNet.

    model: a module, the path of an .onnx file, or a name of timm. example: one sample with batch axis 1, as a tensor or array,
    or one for each input; None for a name of timm (its own input size), and for a file with fixed shapes. devices: names of
    devices of this machine (`ncnn`, `onnxruntime`, others of conf/device/), addresses of running agents, whose token is in the
    environment variable AUTOTAILOR_AGENT_TOKEN, or name -> options as in conf/device/. budgets_ms: latencies of one sample.

    SubNets between the ends are timed while less than `limit_s` have passed; the ends are timed in any case. The answer to a
    budget is interpolated between measured SubNets by multiply-accumulates, with the runtime's default options. No accuracy is
    promised: how accurate a SubNet gets is known after training. The call waits while another run here uses a device.

    UserError: the network, example, device or budget cannot be used. TailorError: the network cannot be read. AgentError: a
    device does not answer.
    """
    start_s = time.monotonic()
    budgets = _budgets(budgets_ms)
    profiles = _profiles(devices)
    with _opened(profiles) as opened:
        name, net = compiled(model, example)
        compile_s = time.monotonic() - start_s
        asked = [AskedDevice(device, partial(one.exclusive, device)) for device, one in opened().items()]
        found = measured(net, asked, budgets, start_s + limit_s - CLOSING_S)
    return Feasibility(
        network=name, devices=MappingProxyType(found), compile_s=compile_s, seconds=time.monotonic() - start_s
    )


@contextmanager
def _opened(profiles: Mapping[str, DeviceProfile]) -> Iterator[Callable[[], Mapping[str, Devices]]]:
    """A function that waits until all devices answer. Each is a set of its own, so that agents start and end together."""
    devices = {name: Devices({name: one}) for name, one in profiles.items()}
    with ThreadPoolExecutor(len(devices)) as pool:
        there = [pool.submit(one.capabilities, name) for name, one in devices.items()]

        def answered() -> Mapping[str, Devices]:
            for one in there:
                one.result()
            return devices

        try:
            yield answered
        finally:
            list(pool.map(Devices.close, devices.values()))


def _budgets(given: float | Sequence[float] | None) -> list[float]:
    budgets = [] if given is None else [given] if isinstance(given, int | float) else list(given)
    for one in budgets:
        if isinstance(one, bool) or not isinstance(one, int | float) or not 0 < one < float("inf"):
            raise UserError("budgets_ms", f"got {one!r}", allowed="numbers above 0")
    return [float(one) for one in budgets]


class _Profiles(BaseModel):
    """Devices by name, for lines that name the device."""

    device: dict[str, DeviceProfile]


def _profiles(devices: GivenDevices) -> dict[str, DeviceProfile]:
    if not isinstance(devices, Mapping):
        devices = {name: _named(name) for name in ([devices] if isinstance(devices, str) else devices)}
    if not devices:
        raise UserError("devices", "got none", allowed="one or more")
    found = validate(_Profiles, {GROUP: dict(devices)}).device
    for name, one in found.items():
        if one.batch != 1:
            raise UserError(
                f"{GROUP}.{name}.batch", f"got {one.batch}", allowed="1, since budgets are those of one sample"
            )
    return found


def _named(name: str) -> DeviceProfile | Mapping[str, Any]:
    """The options of a device of this machine by its name in conf/device/, or of an agent by its address."""
    if name.startswith(ADDRESSES):
        return _of_agent(name)
    files = {stem: Path(conf.__path__[0]) / GROUP / f"{stem}.yaml" for stem in config_groups()[GROUP]}
    texts = {stem: file.read_text(encoding="utf-8") for stem, file in files.items()}
    here = [stem for stem, text in texts.items() if OPEN not in text]
    if name not in here:
        allowed = f"{', '.join(here)}, the address of an agent, or a mapping of names to options"
        raise UserError("devices", f"got '{name}'", allowed=allowed, next_step=nearest(name, here))
    options: Mapping[str, Any] = yaml.safe_load(texts[name])[name]
    return options


def _of_agent(url: str) -> Mapping[str, Any]:
    """The options of an agent that runs already, as it describes itself."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token:
        raise UserError(f"devices '{url}'", f"${TOKEN_VARIABLE} is not set", next_step="put the agent's token there")
    with AgentClient(url, token) as client:
        found = client.capabilities()
    options = {"backend": found.backend, "threads": found.threads, "precision": found.precision}
    return {**options, "agent": url, "token_env": TOKEN_VARIABLE}
