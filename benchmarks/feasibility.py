"""Seconds until `profile` has answered whether budgets can be met, for networks of timm's zoo on devices of this machine.

    python -m benchmarks.feasibility [--devices ncnn onnxruntime] [--markdown] [NETWORK …]

Each answer comes from a process of its own that has imported torch and timm already, as a caller with a network has; the call
includes the compiler's imports, the start and the end of the agents, and all measurements. Processor time is that of the call
with its children: on a machine with other work it says more than the seconds. Exit status 1 if an answer takes more than
10 s, or an end is missing on a device that can run the network.
"""

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.tables import show

NETWORKS = (
    "resnet18",
    "resnet50",
    "mobilenetv3_small_100",
    "mobilenetv3_large_100",
    "levit_128s",
    "efficientnet_b0",
    "vit_tiny_patch16_224",
    "convnext_tiny",
    "mobilevit_s",
    "regnety_008",
    "ghostnet_050",
    "densenet121",
)
LIMIT_S = 10.0
HEADS = ("network", "device", "SubNets", "smallest, ms", "largest, ms", "compile, s", "answer, s", "processor, s")
ASKED = """
import json, os, sys
import timm, torch
from flows.pipeline.feasibility import profile
torch.set_num_threads(1)
before = os.times()
found = profile(sys.argv[1], None, sys.argv[2])
after = os.times()
rows = [[d.name, len(d.subnets), d.smallest.p50_ms, d.largest.p50_ms, d.smallest.reason] for d in found.devices.values()]
print(json.dumps([rows, found.compile_s, found.seconds, sum(after[:4]) - sum(before[:4])]))
"""


def asked(network: str, device: str) -> Any:
    """The rows of an answer, and its seconds: of compilation, of the call, of the processor; in a process of its own."""
    words = [sys.executable, "-W", "ignore", "-c", ASKED, network, device]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{network} on {device}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print a row for each network and device."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", nargs="+", default=["ncnn", "onnxruntime"])
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK")
    arguments = parser.parse_args()
    cells, late = [], []
    for network in arguments.networks:
        for device in arguments.devices:
            ((_, count, smallest_ms, largest_ms, reason),), compile_s, seconds, cpu_s = asked(network, device)
            ends = [reason or "–" if one is None else f"{one:.3g}" for one in (smallest_ms, largest_ms)]
            cells.append((network, device, str(count), *ends, f"{compile_s:.1f}", f"{seconds:.1f}", f"{cpu_s:.1f}"))
            if seconds > LIMIT_S or (reason is None and None in (smallest_ms, largest_ms)):
                late.append(f"{network} on {device}: {seconds:.1f} s")
    show(HEADS, cells, markdown=arguments.markdown)
    if late:
        raise SystemExit(f"above {LIMIT_S:g} s, or without an end: {', '.join(late)}")


if __name__ == "__main__":
    main()
