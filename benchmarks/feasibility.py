"""Seconds until `profile` has answered whether budgets can be met, for networks of timm's zoo on devices of this machine.

    python -m benchmarks.feasibility [--devices ncnn onnxruntime] [--markdown] [NETWORK …]

Each call starts and ends an agent of its own; one call on a network of timm's tests comes first and loads the libraries.
Processor time is that of the call with its children: on a machine with other work it says more than the seconds. Exit status
1 if an answer takes more than 10 s, or an end is missing on a device that can run the network.
"""

import argparse
import os
import sys

import torch

from benchmarks.tables import show
from flows.pipeline.feasibility import profile

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
FIRST = "test_vit"


def cpu_s() -> float:
    """Processor time [s] of this process and of children that it waited for."""
    return sum(os.times()[:4])


def asked(network: str, device: str) -> tuple[list[str], bool]:
    """The cells of an answer, and whether it came in time with both ends, or with the reason why there are none."""
    before_s = cpu_s()
    found = profile(network, None, device)
    spent_s = cpu_s() - before_s
    own = found.devices[device]
    ends = [one.reason or "–" if one.p50_ms is None else f"{one.p50_ms:.3g}" for one in (own.smallest, own.largest)]
    cells = [network, device, str(len(own.subnets)), *ends]
    cells += [f"{one:.1f}" for one in (found.compile_s, found.seconds, spent_s)]
    complete = own.smallest.reason is not None or own.largest.p50_ms is not None
    return cells, complete and found.seconds <= LIMIT_S


def main() -> None:
    """Print a row for each network and device."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", nargs="+", default=["ncnn", "onnxruntime"])
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    profile(FIRST, None, arguments.devices, limit_s=0.0)
    rows, late = [], []
    for network in arguments.networks:
        for device in arguments.devices:
            cells, good = asked(network, device)
            print(*cells, sep="  ", file=sys.stderr, flush=True)
            rows.append(cells)
            late += [] if good else [f"{network} on {device}"]
    show(HEADS, rows, markdown=arguments.markdown)
    if late:
        raise SystemExit(f"above {LIMIT_S:g} s, or without an end: {', '.join(late)}")


if __name__ == "__main__":
    main()
