"""Memory and time of a training step by plan, against plain torch.

    python -m benchmarks.training_memory [--quick] [--batch 16] [--size 224] [--pairs 5] [--json FILE] [NETWORK …]

Steps: *adaptation* trains the norms' weights alone, *fine-tuning* all weights by SGD with momentum. Peaks are
counted: all tensor storages that are alive together, weights and optimiser included
(`tasks.training_memory.StorageCount`). Times are the median of pairs, plain and planned in turn, without the count.
Tables:

1. Each mean alone at the least memory that it can do with, and all together, exact and with 8 bits. Bars: the peak
is at most 30 % of plain
   torch's in 1.5 times its time, and at most 15 % in 2.5 times.
2. Budgets of 100, 75, 50 and 25 % of plain torch's peak: time, and the direction of gradients where activations are
rounded. 3. With `--networks 20`: predicted peak against the counted one, for 20 random small networks and four plans
each. Bar: within 5 %.
"""

import argparse
import copy
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional

from tasks.errors import UserError
from tasks.training_memory import ALL_MEANS, Mean, MemoryPlan, StepPlanner, StorageCount, step, tensors_of
from tests.training_memory import small_networks

NETWORKS = ("resnet50", "mobilenetv2_100", "vit_tiny_patch16_224")
CLASSES = 100
SHARES = (1.0, 0.75, 0.5, 0.25)
BARS = ((0.30, 1.5), (0.15, 2.5))
"""Share of plain torch's peak, and how many times its time."""
MIXES: dict[str, tuple[frozenset[Mean], int]] = {
    **{mean.value: (frozenset({mean}), 32) for mean in Mean},
    "encode, 8 bits": (frozenset({Mean.ENCODE}), 8),
    "all, exact": (ALL_MEANS, 32),
    "all, 8 bits": (ALL_MEANS, 8),
}


class Case:
    """One network with one kind of step. Steps run on copies, so that all begin with the same weights."""

    def __init__(self, name: str, adapting: bool, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        size = {"img_size": options.size} if "vit" in name else {}
        self.name = f"{name}, {'adaptation' if adapting else 'fine-tuning'}"
        self.module = timm.create_model(name, pretrained=False, num_classes=CLASSES, **size).train()
        if adapting:
            small_networks.freeze_but_norms(self.module)
        self.x = torch.randn(options.batch, 3, options.size, options.size)
        self.y = torch.randint(CLASSES, (options.batch,))
        self.planner = StepPlanner(self.module, self.x, optimiser=self.optimiser(self.module))

    @staticmethod
    def optimiser(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.01, momentum=0.9)

    def plain(self, module: nn.Module, optimiser: torch.optim.Optimizer | None) -> None:
        functional.cross_entropy(module(self.x), self.y).backward()
        if optimiser is not None:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def planned(self, plan: MemoryPlan) -> Callable[[nn.Module, torch.optim.Optimizer | None], None]:
        def run(module: nn.Module, optimiser: torch.optim.Optimizer | None) -> None:
            step(plan, module, self.x, functional.cross_entropy, optimiser, self.y)

        return run

    def peak_mib(self, run: Callable[[nn.Module, torch.optim.Optimizer | None], None]) -> float:
        """Of the second step, in which the optimiser's state is there from the beginning."""
        module = copy.deepcopy(self.module)
        optimiser = self.optimiser(module)
        run(module, optimiser)
        with StorageCount([*tensors_of(module, optimiser), self.x]) as count:
            run(module, optimiser)
        return count.peak_mib

    def times_s(
        self, run: Callable[[nn.Module, torch.optim.Optimizer | None], None], pairs: int
    ) -> tuple[float, float]:
        """Median seconds of plain torch and of a step by plan, in turn."""
        taken: tuple[list[float], list[float]] = ([], [])
        sides = [(self.plain, copy.deepcopy(self.module)), (run, copy.deepcopy(self.module))]
        optimisers = [self.optimiser(module) for _, module in sides]
        for pair in range(pairs + 1):
            for side in (0, 1) if pair % 2 else (1, 0):
                work, module = sides[side]
                start = time.perf_counter()
                work(module, optimisers[side])
                if pair:
                    taken[side].append(time.perf_counter() - start)
        return statistics.median(taken[0]), statistics.median(taken[1])

    def cosine(self, run: Callable[[nn.Module, torch.optim.Optimizer | None], None]) -> float:
        """Between gradients of plain torch and of a step by plan."""
        found = []
        for work in (self.plain, run):
            module = copy.deepcopy(self.module)
            work(module, None)
            found.append(small_networks.gradients(module).double())
        return float(functional.cosine_similarity(found[0], found[1], dim=0))


def measured(case: Case, plan: MemoryPlan, plain_mib: float, pairs: int) -> dict[str, Any]:
    run = case.planned(plan)
    plain_s, own_s = case.times_s(run, pairs)
    peak_mib = case.peak_mib(run)
    return {
        "peak_mib": peak_mib,
        "share": peak_mib / plain_mib,
        "predicted_mib": plan.peak_mib,
        "time": own_s / plain_s,
        "seconds": own_s,
        "predicted_s": plan.seconds,
        "cosine": case.cosine(run),
        "means": sorted(mean.value for mean in plan.means),
        "micro_batches": plan.micro_batches,
    }


def rows_of(case: Case, pairs: int) -> list[dict[str, Any]]:
    """Each mean alone and all together at their least memory; then budgets, and the memory of the bars."""
    plain_mib = case.peak_mib(case.plain)
    rows = []
    for name, (means, bits) in MIXES.items():
        least_mib = case.planner.least_mib(means=means, bits=bits)
        plan = case.planner.plan(least_mib, means=means, bits=bits)
        rows.append({"case": case.name, "row": f"least by {name}"} | measured(case, plan, plain_mib, pairs))
    for share in (*SHARES, *(bar for bar, _ in BARS)):
        for bits in (32, 8):
            row = {"case": case.name, "row": f"{share:.0%}, {bits} bits", "plain_mib": plain_mib, "budget": share}
            try:
                plan = case.planner.plan(share * plain_mib, bits=bits)
            except UserError as error:
                rows.append(row | {"refused": str(error)})
            else:
                rows.append(row | measured(case, plan, plain_mib, pairs))
    return rows


def prediction_errors(networks: int) -> list[float]:
    """Relative errors of predicted peaks of random small networks, with four plans each."""
    errors = []
    families = ("resnet", "mobilenet", "vit")
    x, _ = small_networks.batch()
    for seed in range(networks):
        module = small_networks.make(families[seed % len(families)], 100 + seed)
        if seed % 2:
            small_networks.freeze_but_norms(module)
        planner = StepPlanner(module, x)
        means = ALL_MEANS - {Mean.UPDATE}
        least_mib = planner.least_mib(means=means)
        for budget_mib in (least_mib, 1.2 * least_mib, 1.5 * least_mib, math.inf):
            plan = planner.plan(min(budget_mib, 1e4), means=means)
            _, counted_mib = small_networks.lean_step(plan, module)
            errors.append(plan.peak_mib / counted_mib - 1)
    return errors


def show(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(
        "network and step", "plan", "peak [MiB]", "of plain", "predicted [MiB]", "time of plain", "cosine", "means used"
    )
    for row in rows:
        if "refused" in row:
            table.add_row(row["case"], row["row"], "", "", "", "", "", row["refused"])
            continue
        cells = (f"{row['peak_mib']:.1f}", f"{row['share']:.1%}", f"{row['predicted_mib']:.1f}", f"{row['time']:.2f}")
        table.add_row(row["case"], row["row"], *cells, f"{row['cosine']:.5f}", ", ".join(row["means"]))
    console.print(table)
    for share, most in BARS:
        for case in dict.fromkeys(row["case"] for row in rows):
            times = [row["time"] for row in rows if row["case"] == case and row.get("share", 1) <= share]
            best = f"{min(times):.2f} times the time" if times else "not reached"
            console.print(f"peak ≤ {share:.0%}: {case}: {best} (bar: {most})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NETWORK", default=NETWORKS)
    parser.add_argument(
        "--quick", action="store_true", help="MobileNetV2 at 32 pixels, adaptation, one pair, two networks"
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--networks", type=int, default=20, help="small random networks for the error of predictions")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    kinds: tuple[bool, ...] = (True, False)
    if options.quick:
        options.names, options.batch, options.size = ["mobilenetv2_100"], 4, 32
        options.pairs, options.networks, kinds = 1, 2, (True,)
    torch.set_num_threads(options.threads)
    console = Console(width=200)
    rows = []
    for name in options.names:
        for adapting in kinds:
            rows += rows_of(Case(name, adapting, options), options.pairs)
            show([row for row in rows if row["case"].startswith(name)], console)
    errors = prediction_errors(options.networks)
    console.print(f"predicted peaks of {len(errors)} plans: off by {max(map(abs, errors)):.1%} at most (bar: 5 %)")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "prediction_errors": errors}, indent=1) + "\n")


if __name__ == "__main__":
    main()
