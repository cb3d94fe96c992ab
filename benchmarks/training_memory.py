"""Memory and time of a training step by plan, against plain torch.

    python -m benchmarks.training_memory [--parts prediction steps] [--kinds adaptation fine-tuning] [--quick] [--batch 16]
        [--size 224] [--pairs 1] [--json FILE] [NETWORK …]

Steps: *adaptation* trains the norms' weights alone, *fine-tuning* all weights by SGD with momentum, which may wait on disk.
Peaks are counted: all tensor storages that are alive together, weights and optimiser included
(`tasks.training.memory.StorageCount`). Times are the median of pairs, plain and planned in turn, both counted. Gradients are
compared with plain torch's: their cosine, and the largest difference over the largest gradient.
Parts:

- steps: each mean alone at the least memory that it can do with, and all together, exact and with 8 bits; then budgets of
  100, 75, 50 and 25 % of plain torch's peak, in 8 bits where exact gradients cannot be had. Bars: the peak is at most 30 %
  of plain torch's in 1.5 times its time, and at most 15 % in 2.5 times.
- prediction: predicted peak against the counted one, for 20 networks of the zoo at 64 pixels and four budgets each. Bar:
  within 5 %.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn
from torch.nn import functional

from benchmarks.tables import show
from tasks.base.errors import UserError
from tasks.training.memory import (
    ALL_MEANS,
    Mean,
    MemoryPlan,
    OptimiserOnDisk,
    StepPlanner,
    StorageCount,
    step,
    tensors_of,
)
from tests.support.training_memory import small_networks

Step = Callable[[nn.Module, OptimiserOnDisk | None], None]
NETWORKS = ("resnet50", "mobilenetv2_100", "vit_tiny_patch16_224")
PARTS = ("prediction", "steps")
KINDS = ("adaptation", "fine-tuning")
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
    """One network with one kind of step.

    Steps run on copies of a network that has had one step, so that all begin with the same weights, and with the
    optimiser's state there.
    """

    def __init__(self, name: str, adapting: bool, batch: int, size: int, *, state_may_wait: bool = False) -> None:
        torch.manual_seed(0)
        of_tokens: dict[str, Any] = {"img_size": size} if any(word in name for word in OF_TOKENS) else {}
        self.name = f"{name}, {'adaptation' if adapting else 'fine-tuning'}"
        self.module = timm.create_model(name, pretrained=False, num_classes=CLASSES, **of_tokens).train()
        if adapting:
            small_networks.freeze_but_norms(self.module)
        self.x = torch.randn(batch, 3, size, size)
        self.y = torch.randint(CLASSES, (batch,))
        trained = [p for p in self.module.parameters() if p.requires_grad]
        self.optimiser = torch.optim.SGD(trained, 0.01, momentum=0.9)
        with OptimiserOnDisk(self.optimiser) as optimiser:
            self.plain(self.module, optimiser)
            self.planner = StepPlanner(self.module, self.x, optimiser=optimiser if state_may_wait else self.optimiser)

    @cached_property
    def gradients(self) -> torch.Tensor:
        """Of plain torch."""
        return self._gradients(self.plain)

    @cached_property
    def plain_mib(self) -> float:
        """Peak of plain torch."""
        return self.counted(None)[1]

    def plain(self, module: nn.Module, optimiser: OptimiserOnDisk | None) -> None:
        functional.cross_entropy(module(self.x), self.y).backward()
        if optimiser is not None:
            optimiser.optimiser.step()
            optimiser.optimiser.zero_grad(set_to_none=True)

    def planned(self, plan: MemoryPlan) -> Step:
        def run(module: nn.Module, optimiser: OptimiserOnDisk | None) -> None:
            step(plan, module, self.x, functional.cross_entropy, optimiser, self.y)

        return run

    def counted(self, plan: MemoryPlan | None) -> tuple[float, float]:
        """Seconds and peak [MiB] of a step; None: plain torch's."""
        module, inner = copy.deepcopy((self.module, self.optimiser))
        run = self.plain if plan is None else self.planned(plan)
        with OptimiserOnDisk(inner) as optimiser:
            if plan is not None and plan.state_on_disk:
                optimiser.put_away()
            with StorageCount([*tensors_of(module, inner), self.x]) as count:
                start = time.perf_counter()
                run(module, optimiser)
                return time.perf_counter() - start, count.peak_mib

    def times(self, plan: MemoryPlan, pairs: int) -> tuple[float, float, float]:
        """Seconds, times those of plain torch, and the peak [MiB]: medians of pairs, a plain step and this one in turn."""
        taken = [(self.counted(None)[0], *self.counted(plan)) for _ in range(pairs)]
        seconds, peak_mib = (statistics.median(one[place] for one in taken) for place in (1, 2))
        return seconds, statistics.median(own_s / plain_s for plain_s, own_s, _ in taken), peak_mib

    def direction(self, plan: MemoryPlan) -> tuple[float, float]:
        """Of the gradients beside those of plain torch: the cosine, and the largest difference over the largest gradient."""
        own = self._gradients(self.planned(plan))
        cosine = float(functional.cosine_similarity(own, self.gradients, dim=0))
        return cosine, float((own - self.gradients).abs().max() / self.gradients.abs().max())

    def _gradients(self, run: Step) -> torch.Tensor:
        module = copy.deepcopy(self.module)
        run(module, None)
        return small_networks.gradients(module).double()


def measured(case: Case, plan: MemoryPlan, pairs: int) -> dict[str, Any]:
    cosine, difference = case.direction(plan)
    seconds, times, peak_mib = case.times(plan, pairs)
    return {
        "peak_mib": peak_mib,
        "share": peak_mib / case.plain_mib,
        "predicted_mib": plan.peak_mib,
        "time": times,
        "seconds": seconds,
        "predicted_s": plan.seconds,
        "cosine": cosine,
        "gradients_off": difference,
        "means": sorted(mean.value for mean in plan.means),
        "micro_batches": plan.micro_batches,
        "state_on_disk": plan.state_on_disk,
    }


def predictions(networks: int) -> list[dict[str, Any]]:
    """Predicted and counted peaks of the first networks of `PREDICTED`; a budget that is too small becomes the least one.

    Every other network adapts, the others are fine-tuned.
    """
    rows = []
    for number, name in enumerate(PREDICTED[:networks]):
        case = Case(name, bool(number % 2), PREDICTED_BATCH, PREDICTED_SIZE)
        plain_mib, least_mib = case.plain_mib, case.planner.least_mib()
        plans = []
        for share in SHARES:
            plan = case.planner.plan(max(share * plain_mib, least_mib))
            _, counted_mib = case.counted(plan)
            plans.append({"share": share, "predicted_mib": plan.peak_mib, "counted_mib": counted_mib})
            plans[-1]["error"] = plan.peak_mib / counted_mib - 1
        rows.append({"case": case.name, "plain_mib": plain_mib, "least_mib": least_mib, "plans": plans})
        print(f"{case.name}: off by {max(abs(plan['error']) for plan in plans):.2%} at most", flush=True)
    return rows


def rows_of(case: Case, pairs: int) -> Iterator[dict[str, Any]]:
    """Each mean alone and all together at their least memory; then budgets, and the memory of the bars.

    Activations are rounded where a budget cannot be met exactly.
    """
    for name, (means, bits) in MIXES.items():
        least_mib = case.planner.least_mib(means=means, bits=bits)
        plan = case.planner.plan(least_mib, means=means, bits=bits)
        yield {"case": case.name, "row": f"least by {name}"} | measured(case, plan, pairs)
    for share in (*SHARES, *(bar for bar, _ in BARS)):
        for bits in (32, 8):
            name = f"{share:.0%}, {'exact' if bits == 32 else f'{bits} bits'}"
            row: dict[str, Any] = {"case": case.name, "row": name, "plain_mib": case.plain_mib, "budget": share}
            try:
                plan = case.planner.plan(share * case.plain_mib, bits=bits)
            except UserError as error:
                yield row | {"refused": str(error)}
            else:
                yield row | measured(case, plan, pairs)
                break


def show_steps(rows: list[dict[str, Any]]) -> None:
    """A table of steps, and whether the bars are reached."""
    lines = [
        [row["case"], row["row"], *[""] * 6, row["refused"]]
        if "refused" in row
        else [
            row["case"],
            row["row"],
            f"{row['peak_mib']:.1f}",
            f"{row['share']:.1%}",
            f"{row['predicted_mib']:.1f}",
            f"{row['time']:.2f}",
            f"{row['cosine']:.5f}",
            f"{row['gradients_off']:.1e}",
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
        "gradients off",
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
    parser.add_argument("--quick", action="store_true", help="networks at 32 pixels, one pair, two networks")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of steps")
    parser.add_argument("--pairs", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--networks", type=int, default=len(PREDICTED), help="of the zoo, for the error of predictions")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.quick:
        options.names, options.batch, options.size = ["mobilenetv2_100"], 4, 32
        options.pairs, options.networks = 1, 2
    torch.set_num_threads(options.threads)
    found: dict[str, Any] = {}
    if "prediction" in options.parts:
        found["predictions"] = predictions(options.networks)
        show_predictions(found["predictions"])
    for name in (options.names or NETWORKS) if "steps" in options.parts else ():
        for kind in options.kinds:
            case = Case(name, kind == KINDS[0], options.batch, options.size, state_may_wait=True)
            for row in rows_of(case, options.pairs):
                print(row, flush=True)
                found.setdefault("rows", []).append(row)
            show_steps([row for row in found["rows"] if row["case"].startswith(name)])
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
