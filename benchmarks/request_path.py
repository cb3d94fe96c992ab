"""Modules of `adaptive_runtime` that one request to an adapting service passes.

    python -m benchmarks.request_path [--requests 20] [--names]

Two SubNets of ResNet-18 with random weights are served in this process, and adapt. After a warm-up, each request is followed
from the entry of its HTTP route to the answer, in all threads but those that sense. A module counts if one of its Python
functions begins meanwhile. Between two requests is some time: a request that comes at once waits until the model has learned
from the one before. The table has the share of requests that pass each module, with its functions and their calls.

Bar: the median request passes at most 10 modules.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import numpy as np

import adaptive_runtime
from benchmarks.tables import show

PRODUCT = Path(adaptive_runtime.__file__).parent
SENSE = ("sensing", "sensors")
BETWEEN_S = 0.05
BUDGET_MS = 10_000.0
MOST_MODULES = 10
WARM_UP = 5


class FollowedCalls:
    """Calls of functions of the product, by their file and name, while `follows` is set."""

    def __init__(self) -> None:
        self.follows = False
        self.calls: Counter[tuple[str, str]] = Counter()
        self.requests: list[Counter[tuple[str, str]]] = []

    def finish(self) -> None:
        """Keep the calls of one request."""
        if self.follows:
            self.requests.append(self.calls)
        self.follows, self.calls = False, Counter()

    def __call__(self, frame: FrameType, event: str, given: Any) -> None:
        if self.follows and event == "call" and not threading.current_thread().name.startswith(SENSE):
            file = frame.f_code.co_filename
            if file.startswith(str(PRODUCT)):
                self.calls[file, frame.f_code.co_qualname] += 1


async def followed(bundle: Path, requests: int) -> list[Counter[tuple[str, str]]]:
    """Calls of functions of each request, by file and name."""
    from adaptive_runtime.server.answering import ModelService, RequestQueue
    from adaptive_runtime.server.bundles import bundle_served
    from adaptive_runtime.server.options import BundleOptions
    from adaptive_runtime.server.running import ServiceRoutes, create_app
    from tests.support.runtime.service_process import INFER, body

    calls, infer = FollowedCalls(), ServiceRoutes.infer

    async def followed_infer(self: ServiceRoutes, request: Any) -> Any:
        calls.follows = is_warm
        try:
            return await infer(self, request)
        finally:
            calls.finish()

    ServiceRoutes.infer = followed_infer  # type: ignore[method-assign]
    is_warm = False
    threading.setprofile(calls)
    sys.setprofile(calls)
    with bundle_served(BundleOptions(bundle=bundle, adapts=True, budget_ms=BUDGET_MS)) as model:
        queue = RequestQueue(model.infer, 8, 1)
        app = create_app(ModelService(model, queue, name="model", deadline_ms=BUDGET_MS))
        sent = body(np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float32))
        work = asyncio.create_task(queue.work())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            for number in range(WARM_UP + requests):
                is_warm = number >= WARM_UP
                await asyncio.sleep(BETWEEN_S)
                (await client.post(INFER, **sent)).raise_for_status()
        work.cancel()
        queue.close()
    sys.setprofile(None)
    return calls.requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--names", action="store_true", help="the functions, too")
    options = parser.parse_args()
    from benchmarks.service import write

    with tempfile.TemporaryDirectory() as folder:
        write("resnet18", Path(folder) / "bundle")
        calls = asyncio.run(followed(Path(folder) / "bundle", options.requests))
    rows = []
    for file in sorted({file for one in calls for file, _ in one}):
        share = sum(any(of == file for of, _ in one) for one in calls) / len(calls)
        names = {name: count for (of, name), count in sum(calls, Counter[tuple[str, str]]()).items() if of == file}
        module, lines = str(Path(file).relative_to(PRODUCT)), Path(file).read_text().count("\n")
        rows.append((module, str(lines), f"{share:.0%}", str(len(names)), f"{sum(names.values()) / len(calls):.1f}"))
        if options.names:
            print(module, *sorted(names), sep="\n    ")
    show(("module", "lines", "requests", "functions", "calls for a request"), rows)
    passed = statistics.median(len({file for file, _ in one}) for one in calls)
    print(f"the median request passes {passed:g} modules")
    sys.exit(passed > MOST_MODULES)


if __name__ == "__main__":
    main()
