"""Ten thousand jobs in an agent's queue: its memory, the time of a job, and whether a cut network loses one.

    python -m benchmarks.agent_queue [--jobs N]

Models are of one convolution and run for a millisecond, so that the time of a job is what the queue adds to it. The network
between client and agent is cut twice while results are fetched; two jobs in a thousand cannot be measured.
"""

import argparse
import time

from profiling_agents.messages import MIB
from tests.support.agents.long_queue import measure_queue


def main() -> None:
    """Print one line of figures; fails when a result is lost, doubled or wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    count = parser.parse_args().jobs
    start_s = time.monotonic()
    run = measure_queue(count)
    wall_s = time.monotonic() - start_s
    if [result.key for result in run.results] != [f"{index}" for index in range(count)]:
        raise SystemExit("results are lost, doubled or out of order")
    if {int(result.key) for result in run.results if result.state == "failed"} != run.failing:
        raise SystemExit("other jobs failed than those that cannot be measured")
    print(
        f"{count:,} jobs in {wall_s:.0f} s, {1000 * wall_s / count:.1f} ms each; the agent's memory grew by "
        f"{run.full_bytes / MIB:.1f} MiB with a full queue, {run.after_bytes / MIB:.1f} MiB in the end; "
        f"{len(run.failing)} failed as they should, none was lost"
    )


if __name__ == "__main__":
    main()
