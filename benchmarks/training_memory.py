"""Memory and time of steps of an adapting network within a budget of memory, against plain steps.

    python -m benchmarks.training_memory [--method tent] [--batch 16] [--size 224] [--pairs 3] [--json FILE] [NETWORK …]

The largest SubNet of each network adapts by SGD with momentum (`MethodSettings.memory_mib`). Budgets are shares of a
plain step's peak, and the least budget. Peaks are counted: all tensor storages that are alive together, weights and
optimiser included (`tasks.training.memory.StorageCount`). Times are medians of pairs, a plain step and one within the
budget in turn, both counted. Answers and adapted tensors must be equal, bit by bit.
"""

import argparse
import json
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timm
import torch

import tailor_ir
from benchmarks.tables import show
from tasks.adaptation import AdaptationMethod, AdaptiveSubnet, MethodSettings, make_method
from tasks.adaptation.methods import Budgeted
from tasks.base.errors import UserError
from tasks.training.memory import StorageCount

NETWORKS = ("resnet50", "mobilenetv2_100", "vit_tiny_patch16_224")
CLASSES = 100
SHARES = (0.75, 0.5, 0.25)
HEADS = ("network", "budget", "peak [MiB]", "of plain", "predicted [MiB]", "time of plain", "plan")


class Case:
    """One network that adapts to one batch, again and again."""

    def __init__(self, name: str, method: str, batch: int, size: int) -> None:
        torch.manual_seed(0)
        of_tokens: dict[str, Any] = {"img_size": size} if name.startswith("vit_") else {}
        network = timm.create_model(name, num_classes=CLASSES, **of_tokens).eval()
        self.name, self._net = name, tailor_ir.compile(network, torch.zeros(1, 3, size, size))
        self._settings = {"method": method, "optimiser": "sgd", "learning_rate": 0.01, "prior_images": 16.0}
        self.x = torch.randn(batch, 3, size, size)
        self.plain = self._after_a_step(None)
        _, self.plain_mib, _ = self.counted(self.plain)

    def _after_a_step(self, memory_mib: float | None) -> AdaptationMethod:
        """The method after one step, which makes its plan and the optimiser's state."""
        settings = MethodSettings.model_validate({**self._settings, "memory_mib": memory_mib})
        method = make_method(AdaptiveSubnet.of(self._net, self._net.max_config), settings, [self.x])
        method.adapt(self.x)
        return method

    def counted(self, method: AdaptationMethod) -> tuple[float, float, torch.Tensor]:
        """Seconds, peak [MiB] and answers of a step."""
        subnet = method.subnet
        with StorageCount([*subnet.network.state_dict().values(), *subnet.source.values(), self.x]) as count:
            start = time.perf_counter()
            answers = method.adapt(self.x)
            return time.perf_counter() - start, count.peak_mib, answers

    def least_mib(self) -> float:
        """The least budget that can be met, from the line that refuses a smaller one."""
        try:
            self._after_a_step(1.0)
        except UserError as error:
            (least,) = re.findall(r"allowed: ([0-9.]+) MiB or more", str(error))
            return float(least)
        return 1.0

    def rows(self, pairs: int) -> Iterator[dict[str, Any]]:
        """A row for each budget."""
        least_mib = self.least_mib()
        for budget_mib in (*(share * self.plain_mib for share in SHARES), least_mib):
            row = {"network": self.name, "budget_mib": budget_mib, "budget": budget_mib / self.plain_mib}
            yield row | (self._measured(budget_mib, pairs) if budget_mib >= least_mib else {"refused": least_mib})

    def _measured(self, budget_mib: float, pairs: int) -> dict[str, Any]:
        method = self._after_a_step(budget_mib)
        assert isinstance(method, Budgeted)
        (plan,) = method.plans.values()
        self.plain = self._after_a_step(None)
        times, peak_mib = [], 0.0
        for _ in range(pairs):
            plain_s, _, wanted = self.counted(self.plain)
            own_s, peak_mib, answers = self.counted(method)
            assert torch.equal(answers, wanted), "steps within a budget give other answers"
            times.append(own_s / plain_s)
        return {
            "peak_mib": peak_mib,
            "share": peak_mib / self.plain_mib,
            "predicted_mib": plan.peak_mib,
            "time": statistics.median(times),
            "plan": plan.words().partition(":")[0],
        }


def _line(row: dict[str, Any]) -> list[str]:
    """Cells of a row."""
    first = [row["network"], f"{row['budget']:.0%}"]
    if "refused" in row:
        return [*first, "refused", "", "", "", f"at least {row['refused']:.0f} MiB"]
    numbers = (f"{row['peak_mib']:.0f}", f"{row['share']:.1%}", f"{row['predicted_mib']:.0f}", f"{row['time']:.2f}")
    return [*first, *numbers, row["plan"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--method", default="tent")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for name in options.names or NETWORKS:
        rows += Case(name, options.method, options.batch, options.size).rows(options.pairs)
        show(list(HEADS), [_line(row) for row in rows if row["network"] == name], width=200)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
