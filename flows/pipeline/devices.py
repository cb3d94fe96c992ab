"""The devices of one run: remote agents are connected; local agents and agents over ssh are started on first use."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

from adaptive_runtime.base.telemetry import span
from flows.config import DeviceProfile
from flows.machine import in_turn
from profiling_agents.client import AgentClient, local_agent
from profiling_agents.client.ssh import ssh_agent
from profiling_agents.messages import DEFAULT_ENGINE, AgentError, Capabilities, Engine
from profiling_agents.network.endpoint import is_loopback
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError
from tasks.measuring.fleet import Fleet, Meter

THIS_MACHINE = "this machine"


class Devices:
    """Clients by device name. Use as a context: agents started here end with it."""

    def __init__(
        self, profiles: Mapping[str, DeviceProfile], turn: Callable[[str], AbstractContextManager[object]] = in_turn
    ) -> None:
        """turn: gives exclusive use of a device that other machines can also reach."""
        self.profiles = dict(profiles)
        self._turn = turn
        self._connected: dict[str, tuple[tuple[AgentClient, ...], ExitStack]] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> "Devices":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the agents started here and every connection; callers waiting for an answer get an AgentError."""
        for name in tuple(self._connected):
            self._disconnect(name)

    def client(self, name: str) -> AgentClient:
        """The device's client, shared by all stages and threads; for several identical devices, the first that answers."""
        *others, last = self._clients(name)
        for client in others:
            with suppress(AgentError):
                client.capabilities()
                return client
        return last

    def capabilities(self, name: str) -> Capabilities:
        """The capabilities of the device; UserError if they contradict its profile."""
        found, profile = self.client(name).capabilities(), self.profiles[name]
        for field in ("backend", "threads", "precision", "cores", "provider"):
            wanted, got = getattr(profile, field), getattr(found, field)
            if wanted not in (None, got):
                wanted, got = (",".join(map(str, one)) if field == "cores" else one for one in (wanted, got))
                hint = f"set device.{name}.{field}={got} or start the agent with {wanted}"
                raise UserError(f"device.{name}.{field}", f"profile says {wanted}, agent has {got}", next_step=hint)
        return found

    def fingerprint(self, name: str, engine: Engine = DEFAULT_ENGINE) -> str:
        """Fingerprint of device (checked against the profile), engine and batch; measurements are comparable if it is equal."""
        own, batch = engine.fingerprint(self.capabilities(name).fingerprint), self.profiles[name].batch
        return own if batch == 1 else digest_of(own, batch)

    @contextmanager
    def exclusive(self, name: str, engine: Engine = DEFAULT_ENGINE, *, alone: bool = False) -> Iterator[AgentClient]:
        """A client whose models run with an engine. It holds the device's lease, and no other run of this machine uses the
        device.

        Agents started here keep to their own cores. They take turns if there are too few cores, or if `alone` is set because
        this process computes between the measurements. After an AgentError the next use reconnects.
        """
        turns = alone or share_cores([profile for profile in self.profiles.values() if profile.is_here])
        with self._alone(name, turns), self._client_or_anew(name) as client:
            chosen = client.with_engine(engine)
            with chosen.lease():
                yield chosen

    @contextmanager
    def meter(self, name: str, engine: Engine = DEFAULT_ENGINE) -> Iterator[Meter]:
        """The meter for many models: the device, or all identical devices at once; exclusive until the block ends."""
        if not self.profiles[name].agents:
            with self.exclusive(name, engine) as client:
                yield client
            return
        with (
            self._alone(name),
            self._client_or_anew(name),
            Fleet([client.with_engine(engine) for client in self._clients(name)]) as fleet,
        ):
            yield fleet

    @contextmanager
    def _alone(self, name: str, turns: bool = False) -> Iterator[None]:
        """Exclude other runs from the device; `turns`: from all devices of this machine."""
        profile = self.profiles[name]
        with ExitStack() as stack:
            if profile.ssh is not None:
                stack.enter_context(self._turn(f"ssh {profile.ssh.host} {profile.ssh.port or ''}"))
            elif not profile.urls:
                stack.enter_context(in_turn(THIS_MACHINE if turns else f"{THIS_MACHINE}: {profile.backend}"))
            for url in sorted(profile.urls):
                here = is_loopback(urlsplit(url).hostname or "")
                stack.enter_context(in_turn(url) if here else self._turn(url))
            yield

    @contextmanager
    def _client_or_anew(self, name: str) -> Iterator[AgentClient]:
        """The device's client; after an AgentError the next use reconnects."""
        try:
            with span("device work", device=name):
                yield self.client(name)
        except AgentError:
            self._disconnect(name)
            raise

    def _clients(self, name: str) -> tuple[AgentClient, ...]:
        with self._lock:
            if name not in self._connected:
                with ExitStack() as stack:
                    clients = tuple(self._connect(name, stack))
                    for client in clients:
                        client.around_batch = lambda models: span(
                            "device batch", holds=False, device=name, models=models
                        )
                    self._connected[name] = clients, stack.pop_all()
            return self._connected[name][0]

    def _disconnect(self, name: str) -> None:
        with self._lock:
            _, stack = self._connected.pop(name, ((), ExitStack()))
        stack.close()

    def _connect(self, name: str, stack: ExitStack) -> Iterator[AgentClient]:
        profile = self.profiles[name]
        for url in profile.urls:
            yield stack.enter_context(AgentClient(url, _token(name, profile), ca_file=profile.ca_file))
        cores = None if profile.cores is None else ",".join(map(str, profile.cores))
        given = {"provider": profile.provider, "cores": cores, "pin-mhz": profile.pin_mhz}
        options = ["--precision", profile.precision]
        options += [f"--{name}={value}" for name, value in given.items() if value is not None]
        if profile.ssh is not None:
            target = profile.ssh.target()
            yield stack.enter_context(ssh_agent(target, profile.backend, profile.threads, options=options))
        elif profile.is_here:
            yield stack.enter_context(local_agent(profile.backend, profile.threads, options=options))


def share_cores(profiles: Sequence[DeviceProfile]) -> bool:
    """Whether devices of one machine may share a core: too many threads, a core named twice, or only some cores named."""
    named = [core for profile in profiles for core in profile.cores or ()]
    crowded = sum(profile.threads for profile in profiles) > len(os.sched_getaffinity(0))
    mixed = bool(named) and any(profile.cores is None for profile in profiles)
    return crowded or mixed or len(set(named)) < len(named)


def _token(name: str, profile: DeviceProfile) -> str:
    file, variable = profile.token_file, profile.token_env
    where = f"device.{name}.token_file" if file else f"device.{name}.token_env"
    try:
        token = (file.read_text(encoding="utf-8") if file else os.environ.get(variable or "", "")).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(where, f"'{file}' cannot be read", next_step="copy the token file of the agent here") from error
    if not token:
        got = f"'{file}' is empty" if file else f"${variable} is not set"
        raise UserError(where, got, next_step="put the agent's token there")
    return token
