"""Several services on one simulated device, which share its cores with each other and with what else computes."""

from bisect import bisect_right
from collections.abc import Sequence
from math import inf

from adaptive_runtime.policy import ChoicePolicy
from benchmarks.simulation.outcomes import SimulatedOutcome
from benchmarks.simulation.server import SimulatedServer, Simulation


def shared_slow_down(slow_down: float, beside: int, cores: int) -> float:
    """Slow-down of one thread among others that all have an equal share of the cores (processor sharing).

    slow_down: of the thread beside the load alone, from which follows how many processes that load is. beside: other services
    that run a request.
    """
    load = slow_down * cores - 1 if slow_down > 1 else 0.0
    return max(1.0, (1 + load + beside) / cores)


def run_together(
    simulations: Sequence[Simulation], policies: Sequence[ChoicePolicy], cores: int
) -> list[SimulatedOutcome]:
    """What becomes of the requests of services with one thread each, in the order of time.

    The traces have one load: that of the device, which slows all load classes down alike. A service that runs a request when
    another one's turn comes slows that one down; none knows of the others.
    """
    servers = [SimulatedServer(one, policy) for one, policy in zip(simulations, policies, strict=True)]
    trace = simulations[0].requests.trace
    times_s, slow_down = list(trace.times_s), trace.slow_down[0]
    while True:
        server = min(servers, key=lambda one: one.next_s)
        now_s = server.next_s
        if now_s == inf:
            return [one.outcome() for one in servers]
        alone = slow_down[bisect_right(times_s, now_s) - 1]
        beside = sum(one is not server and one.free_s > now_s for one in servers)
        server.slower = shared_slow_down(alone, beside, cores) / alone
        server.next()
