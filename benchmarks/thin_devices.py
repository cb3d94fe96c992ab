"""Simulated devices for `benchmarks.thousand_devices`: the real protocols of agent, relay and registry, without a runtime.

    python -m benchmarks.thin_devices TOKENS REGISTRY RELAY --faulty 0.05 --seed 0 --out FILE

All in one process. A device enrols with a token of the file, pulls from the relay and answers as an agent does: an operator's
latency is drawn from a model of its kind in the place of running it. It tells sums once a window, and fetches its bundle. The
process prints a line when all have enrolled, ends when its input is closed, and writes what devices counted.
"""

import argparse
import asyncio
import hashlib
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from adaptive_runtime.fleet import EnrolAsked, RequestSums, Telemetry
from benchmarks.rollout_fleet import KINDS, DeviceKind
from benchmarks.thin_http import ThinAnswer, ThinClient
from profiling_agents import frames
from profiling_agents.frames import checksum, to_line
from profiling_agents.messages import (
    PROTOCOL,
    Answered,
    Capabilities,
    DeviceState,
    JobsQueued,
    LeaseGranted,
    Measurement,
    Message,
    ModelStored,
    Pulled,
    Timing,
)

PULL_S = 20
ENROL_AT_ONCE = 64
BETWEEN = 0.05
"""Standard deviation of ln(speed) between devices of one kind."""
NOISE = 0.04
"""Of ln(latency) between measurements on one device."""
DISTURBED = 0.03
"""Share of measurements beside which something else ran: 1.3 to 3 times as long."""
ODD_FACTOR = 1.6
SLOW_S = 2.0
REQUESTS = 100
FAULTS = ("impossible sums", "invented latencies", "hangs", "disconnects", "replays", "slow", "odd latencies")
ODD = {"invented latencies", "replays", "odd latencies"}
"""Faults that make a device's times others than those of its kind."""
SILENT = {"hangs", "disconnects"}
"""Faults with which a device measures nothing, and tells nothing."""


def true_ms(operator: str, kind: DeviceKind) -> float:
    """p50 of an operator on the kind's usual device: between 0.02 and 2 ms on the fastest kind, by its digest."""
    share = int(operator[:8], 16) / 2**32
    return 0.02 * 100**share * kind.latency_ms / KINDS[3].latency_ms


def capabilities(kind: DeviceKind) -> Capabilities:
    """As the kind's agents tell it."""
    state = DeviceState(
        cores=(), memory_available_mib=1024, temperatures=(), throttle_events=None, throttled=None, power_source=None
    )
    return Capabilities(
        backend="onnxruntime",
        version="simulated",
        build="simulated",
        formats=("onnx",),
        protocol=PROTOCOL,
        threads=1,
        cores=(0,),
        cores_shared=False,
        pinned=True,
        cpu_model=kind.name,
        machine="simulated",
        system="simulated",
        governor=None,
        frequency_mhz=None,
        frequency_state="unknown",
        operating_system=None,
        running_system=None,
        power_sensors=(),
        state=state,
        memory_mib=2048,
        memory_limit_mib=512,
        cpu_limit_s=120,
        wall_limit_s=60.0,
        max_model_mib=512,
        max_tensors_mib=64,
        fingerprint=hashlib.sha256(kind.name.encode()).hexdigest(),
    )


class ThinDevice:
    """One device. fault: of `FAULTS`; empty: sound."""

    def __init__(self, number: int, kind: DeviceKind, fault: str, seed: int, counts: Counter[str]) -> None:
        self.kind, self.fault, self._counts = kind, fault, counts
        self._rng = random.Random(f"{seed}:{number}")
        self._factor = self._rng.lognormvariate(0.0, BETWEEN) * (ODD_FACTOR if fault == "odd latencies" else 1.0)
        self._name = f"device-{number}"
        self.device, self._token = "", ""
        self._jobs: list[str] = []
        self._batches: dict[str, JobsQueued] = {}
        self._first: list[Measurement] = []
        self.bundle: str | None = None
        self._sequence = 0

    async def enrol(self, url: str, token: str) -> None:
        """With a token that counts once."""
        asked = EnrolAsked(
            name=self._name, kind=self.kind.name, fingerprint=hashlib.sha256(self.kind.name.encode()).hexdigest()
        )
        client = ThinClient(url, token)
        answer = await client.patient("POST", "/v1/enrolments", asked.model_dump_json().encode())
        client.close()
        assert answer.status == 200, answer
        found = answer.json()
        self.device, self._token = found["device"], found["token"]

    async def pull(self, url: str) -> None:
        """Requests of the relay's clients, one after the other, for ever."""
        relay, taken = ThinClient(url, self._token), ""
        try:
            while True:
                headers = {"Wait-S": str(PULL_S), "Working": taken}
                taken = await self._answer(relay, await relay.patient("GET", "/v1/pull", headers=headers))
        finally:
            await relay.ended()

    async def _answer(self, relay: ThinClient, pull: ThinAnswer) -> str:
        """Answer the request of a pull; its number where this device goes on to claim that it works on it."""
        self._counts["pulls"] += 1
        if pull.status != 200:
            assert pull.status == 204, pull
            return ""
        header_bytes, _ = frames.LENGTHS.unpack(pull.body[: frames.LENGTHS.size])
        end = frames.LENGTHS.size + header_bytes
        pulled, body = Pulled.model_validate_json(pull.body[frames.LENGTHS.size : end]), pull.body[end:]
        results = pulled.path.startswith("/v1/results/")
        if self.fault == "hangs" and results:
            return pulled.request
        if self.fault == "slow":
            await asyncio.sleep(SLOW_S)
        status, content, content_type = self._work(pulled, body)
        stated = "" if results else checksum(content)
        header = Answered(status=status, content_type=content_type, checksum=stated).model_dump_json().encode()
        frame = frames.pack(header) + content
        headers = {"Request": pulled.request}
        if self.fault == "disconnects" and results:
            await relay.begin("POST", "/v1/answers", headers, len(frame), frame[: len(frame) - 20])
            relay.close()
            return ""
        await relay.patient("POST", "/v1/answers", frame, headers)
        self._counts["answers"] += 1
        return ""

    def _work(self, pulled: Pulled, body: bytes) -> tuple[int, bytes, str]:
        """Status, content and type of the answer, as an agent's."""
        method, path = pulled.method, pulled.path
        if path.startswith("/v1/results/"):
            keys = self._jobs[int(path.rpartition("/")[2]) :]
            lines = (to_line(self._measured(key).model_dump_json().encode()) for key in keys)
            return 200, b"".join(lines), "application/x-ndjson"
        if path == "/v1/lease":
            if method == "DELETE":
                return 204, b"", ""
            if method == "POST":
                self._jobs, self._batches = [], {}
            lease = json.loads(body)["lease"] if method == "POST" else pulled.lease
            return 200, *_json(LeaseGranted(lease=lease, expires_in_s=30.0))
        if path == "/v1/models":
            return 201, *_json(ModelStored(sha256=hashlib.sha256(body).hexdigest(), size=len(body)))
        if path == "/v1/jobs" and method == "POST":
            return 202, *_json(self._queued(json.loads(body)))
        if path == "/v1/jobs":
            return 200, *_json(JobsQueued(first=len(self._jobs), next=len(self._jobs)))
        assert path == "/v1/capabilities", path
        return 200, *_json(capabilities(self.kind))

    def _queued(self, request: dict[str, Any]) -> JobsQueued:
        """Numbers of a batch, which are the same when it comes twice."""
        if request["batch"] not in self._batches:
            first = len(self._jobs)
            self._jobs += [job["key"] for job in request["jobs"]]
            self._batches[request["batch"]] = JobsQueued(first=first, next=len(self._jobs))
        return self._batches[request["batch"]]

    def _measured(self, operator: str) -> Measurement:
        rng = self._rng
        ms = true_ms(operator, self.kind) * self._factor * rng.lognormvariate(0.0, NOISE)
        if rng.random() < DISTURBED:
            ms *= rng.uniform(1.3, 3.0)
        if self.fault == "invented latencies":
            ms = 10 ** rng.uniform(-2, 2)
        timing = Timing(p50_ms=ms, p90_ms=1.05 * ms, spread=0.05, n=20, repeats=1, noisy=False)
        found = Measurement.ok(operator, timing)
        if self.fault == "replays":
            self._first.append(found)
            return self._first[0].model_copy(update={"key": operator})
        return found

    async def tell(self, url: str) -> None:
        """Sums once a window; the bundle that is assigned is fetched."""
        registry, window_s = ThinClient(url, self._token), 1.0
        while self.fault not in SILENT:
            answer = await registry.patient("POST", "/v1/telemetry", self._told())
            self._counts["tellings"] += 1
            if answer.status == 200:
                window_s = answer.json()["tell_every_s"]
                await self._go_over(registry, answer.json())
            else:
                assert self.fault == "impossible sums", answer
                assert answer.status == 422, answer
                self._counts["refused tellings"] += 1
            now_s = time.time()
            window = int(now_s // window_s) + 1
            await asyncio.sleep((window + 0.1 + 0.6 * self._rng.random()) * window_s - now_s)

    def _told(self) -> bytes:
        rng = self._rng
        self._sequence += 1
        log_ms = REQUESTS * (rng.gauss(2.0, 0.1) + (3.0 if self.fault == "odd latencies" else 0.0))
        sums = RequestSums(requests=REQUESTS, log_latency=log_ms, in_time=95, confidence=80 + rng.gauss(0, 0.5))
        sequence = 1 if self.fault == "replays" else self._sequence
        content = Telemetry(sequence=sequence, bundle=self.bundle, sums=sums).model_dump_json()
        if self.fault == "impossible sums":
            content = content.replace('"in_time":95.0', '"in_time":9500.0')
        return content.encode()

    async def _go_over(self, registry: ThinClient, assigned: dict[str, Any]) -> None:
        self._counts["tellings by an older copy"] += "ahead" in assigned
        digest = assigned["bundle"]
        if digest == self.bundle or digest is None:
            self.bundle = digest
            return
        manifest = await self._fetch(registry, digest)
        for facts in json.loads(manifest.body)["files"].values():
            await self._fetch(registry, facts["sha256"])
        self.bundle = digest
        self._counts["bundles fetched"] += 1

    async def _fetch(self, registry: ThinClient, digest: str) -> ThinAnswer:
        answer = await registry.patient("GET", f"/v1/files/{digest}")
        assert hashlib.sha256(answer.body).hexdigest() == digest
        self._counts["files"] += 1
        self._counts["bytes"] += len(answer.body)
        return answer


def _json(message: Message) -> tuple[bytes, str]:
    return message.model_dump_json().encode(), "application/json"


def devices_of(count: int, faulty: float, seed: int, counts: Counter[str]) -> list[ThinDevice]:
    """Kinds by their shares; faults in turn, on devices that are drawn."""
    rng = random.Random(seed)
    kinds = [kind for kind in KINDS for _ in range(round(kind.share * count))][:count]
    kinds += [KINDS[0]] * (count - len(kinds))
    bad = rng.sample(range(count), round(faulty * count))
    faults = {number: FAULTS[place % len(FAULTS)] for place, number in enumerate(bad)}
    return [ThinDevice(number, kind, faults.get(number, ""), seed, counts) for number, kind in enumerate(kinds)]


async def live(options: argparse.Namespace) -> None:
    """All devices, until standard input is closed."""
    tokens = options.tokens.read_text().split()
    counts: Counter[str] = Counter()
    devices = devices_of(len(tokens), options.faulty, options.seed, counts)
    places, start_s = asyncio.Semaphore(ENROL_AT_ONCE), time.perf_counter()

    async def enrol(device: ThinDevice, token: str) -> None:
        async with places:
            await device.enrol(options.registry, token)

    await asyncio.gather(*(enrol(*pair) for pair in zip(devices, tokens, strict=True)))
    told = {device.device: [device.kind.name, device.fault] for device in devices}
    print(json.dumps({"enrolled_s": time.perf_counter() - start_s, "devices": told}), flush=True)
    works = [work for device in devices for work in (device.pull(options.relay), device.tell(options.registry))]
    tasks = [asyncio.create_task(work) for work in works]
    closed = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait([closed, *tasks[::2]], return_when=asyncio.FIRST_COMPLETED)
    failures = [repr(task.exception()) for task in tasks if task.done() and task.exception() is not None]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    bundles = Counter(device.bundle or "own" for device in devices)
    options.out.write_text(json.dumps({"counts": counts, "bundles": bundles, "failures": failures}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", type=Path)
    parser.add_argument("registry")
    parser.add_argument("relay")
    parser.add_argument("--faulty", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asyncio.run(live(parser.parse_args()))


if __name__ == "__main__":
    main()
