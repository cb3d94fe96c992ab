"""Memory and time of a training step by plan, against plain torch.

    python -m benchmarks.training_memory [--parts prediction steps] [--quick] [--batch 16] [--size 224]
        [--pairs 5] [--json FILE] [NETWORK …]

Steps: *adaptation* trains the norms' weights alone, *fine-tuning* all weights by SGD with momentum. Peaks are
counted: all tensor storages that are alive together, weights and optimiser included
(`tasks.training_memory.StorageCount`). Times are the median of pairs, plain and planned in turn, without the count.
Parts:

- steps: each mean alone at the least memory that it can do with, and all together, exact and with 8 bits; then budgets of
  100, 75, 50 and 25 % of plain torch's peak, with the direction of gradients where activations are rounded. Bars: the peak
  is at most 30 % of plain torch's in 1.5 times its time, and at most 15 % in 2.5 times.
- prediction: predicted peak against the counted one, for 20 networks of the zoo at 64 pixels and four budgets each. Bar:
  within 5 %.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn
from torch.nn import functional

from benchmarks.tables import show
from tasks.errors import UserError
from tasks.training_memory import ALL_MEANS, Mean, MemoryPlan, StepPlanner, StorageCount, step, tensors_of
from tests.training_memory import small_networks

NETWORKS = ("resnet50", "mobilenetv2_100", "vit_tiny_patch16_224")
PARTS = ("prediction", "steps")
CLASSES = 100
WIDTH = 200
PREDICTED = (
    "test_byobnet",
    "test_convnext",
    "ghostnet_050",
    "mobilenetv3_small_050",
    "test_resnet",
    "regnetx_002",
    "hgnetv2_b0",
    "test_efficientnet",
    "dla46x_c",
    "levit_128s",
    "starnet_s050",
    "test_vit",
    "ese_vovnet19b_slim_dw",
    "repvit_m1",
    "resnest14d",
    "rexnet_100",
    "res2next50",
    "mobilevit_xxs",
    "densenet121",
    "deit_tiny_patch16_224",
)
"""Networks of the zoo, one for each of twenty families."""
PREDICTED_BATCH, PREDICTED_SIZE = 4, 64
OF_TOKENS = ("vit_", "deit", "levit", "test_vit")
"""In names of networks that are made for one size of images."""
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

    def __init__(self, name: str, adapting: bool, batch: int, size: int) -> None:
        torch.manual_seed(0)
        of_tokens: dict[str, Any] = {"img_size": size} if any(word in name for word in OF_TOKENS) else {}
        self.name = f"{name}, {'adaptation' if adapting else 'fine-tuning'}"
        self.module = timm.create_model(name, pretrained=False, num_classes=CLASSES, **of_tokens).train()
        if adapting:
            small_networks.freeze_but_norms(self.module)
        self.x = torch.randn(batch, 3, size, size)
        self.y = torch.randint(CLASSES, (batch,))
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


def predictions(networks: int) -> list[dict[str, Any]]:
    """Predicted and counted peaks of the first networks of `PREDICTED`; a budget that is too small becomes the least one.

    Every other network adapts, the others are fine-tuned.
    """
    rows = []
    for number, name in enumerate(PREDICTED[:networks]):
        case = Case(name, bool(number % 2), PREDICTED_BATCH, PREDICTED_SIZE)
        plain_mib, least_mib = case.peak_mib(case.plain), case.planner.least_mib()
        plans = []
        for share in SHARES:
            plan = case.planner.plan(max(share * plain_mib, least_mib))
            counted_mib = case.peak_mib(case.planned(plan))
            plans.append({"share": share, "predicted_mib": plan.peak_mib, "counted_mib": counted_mib})
            plans[-1]["error"] = plan.peak_mib / counted_mib - 1
        rows.append({"case": case.name, "plain_mib": plain_mib, "least_mib": least_mib, "plans": plans})
        print(f"{case.name}: off by {max(abs(plan['error']) for plan in plans):.2%} at most", flush=True)
    return rows


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


def show_steps(rows: list[dict[str, Any]]) -> None:
    """A table of steps, and whether the bars are reached."""
    lines = [
        [row["case"], row["row"], *[""] * 5, row["refused"]]
        if "refused" in row
        else [
            row["case"],
            row["row"],
            f"{row['peak_mib']:.1f}",
            f"{row['share']:.1%}",
            f"{row['predicted_mib']:.1f}",
            f"{row['time']:.2f}",
            f"{row['cosine']:.5f}",
            ", ".join(row["means"]),
        ]
        for row in rows
    ]
    heads = [
        "network and step",
        "plan",
        "peak [MiB]",
        "of plain",
        "predicted [MiB]",
        "time of plain",
        "cosine",
        "means",
    ]
    show(heads, lines, width=WIDTH)
    for share, most in BARS:
        for case in dict.fromkeys(row["case"] for row in rows):
            times = [row["time"] for row in rows if row["case"] == case and row.get("share", 1) <= share]
            best = f"{min(times):.2f} times the time" if times else "not reached"
            print(f"peak ≤ {share:.0%}: {case}: {best} (bar: {most})")


def show_predictions(rows: list[dict[str, Any]]) -> None:
    """A table of predicted and counted peaks, and the largest error."""
    lines = [
        [row["case"], f"{row['plain_mib']:.1f}"]
        + [f"{plan['predicted_mib']:.1f} ({plan['error']:+.1%})" for plan in row["plans"]]
        for row in rows
    ]
    heads = ["network and step", "plain [MiB]", *(f"{share:.0%}: predicted [MiB] (error)" for share in SHARES)]
    show(heads, lines, width=WIDTH)
    errors = [abs(plan["error"]) for row in rows for plan in row["plans"]]
    print(
        f"predicted peaks of {len(errors)} plans of {len(rows)} networks: off by {max(errors):.1%} at most (bar: 5 %)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NETWORK", help="of steps; " + ", ".join(NETWORKS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--quick", action="store_true", help="networks at 32 pixels, adaptation, one pair, two networks"
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--networks", type=int, default=len(PREDICTED), help="of the zoo, for the error of predictions")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    kinds: tuple[bool, ...] = (True, False)
    if options.quick:
        options.names, options.batch, options.size = ["mobilenetv2_100"], 4, 32
        options.pairs, options.networks, kinds = 1, 2, (True,)
    torch.set_num_threads(options.threads)
    found: dict[str, Any] = {}
    if "prediction" in options.parts:
        found["predictions"] = predictions(options.networks)
        show_predictions(found["predictions"])
    for name in (options.names or NETWORKS) if "steps" in options.parts else ():
        for adapting in kinds:
            found.setdefault("rows", []).extend(
                rows_of(Case(name, adapting, options.batch, options.size), options.pairs)
            )
            show_steps([row for row in found["rows"] if row["case"].startswith(name)])
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
