"""Puts one fault by hand into each of 20 rooms, and shows that `make test` catches it.

    python -m benchmarks.put_in_faults                 # the tests of the room that the fault is in, until the first that fails
    python -m benchmarks.put_in_faults --whole         # all unit and integration tests for each fault (hours)

Each fault is one small edit of a copy of the working tree, which is thrown away afterwards.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
CHOSEN = ("-m", "not long")
"""The tests of these folders that `make test` runs."""
WHOLE = ("tests/unit", "tests/integration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An edit of one file: `right` becomes `wrong`. tests: folders or files, of which one test fails at least."""

    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


FAULTS = (
    Fault(
        file="solvers/front.py",
        right="if gain[row] > best:",
        wrong="if gain[row] >= best:",
        tests=("tests/unit/solvers", "tests/unit/search"),
    ),
    Fault(
        file="solvers/chain.py",
        right="weight * each.gain - prices @ each.costs for",
        wrong="weight * each.gain + prices @ each.costs for",
        tests=("tests/unit/solvers",),
    ),
    Fault(
        file="tailor_ir/ops/conv.py",
        right="return shapes.inputs[0][1] // shapes.inputs[1][1]",
        wrong="return shapes.full_inputs[0][1] // shapes.full_inputs[1][1]",
        tests=("tests/unit/ir",),
    ),
    Fault(
        file="tailor_ir/subnets/batch_norms.py",
        right="momentum=1.0 / moments.batches",
        wrong="momentum=0.1",
        tests=("tests/unit/ir", "tests/unit/training"),
    ),
    Fault(
        file="tailor_ir/subnets/onnx_export.py",
        right="shift = bias + (own - mean) * factor",
        wrong="shift = bias + (own + mean) * factor",
        tests=("tests/unit/ir", "tests/integration/ir"),
    ),
    Fault(
        file="tailor_ir/memory/layouts.py",
        right="if not c.used and c.bytes_ >= bytes_)",
        wrong="if not c.used and c.bytes_ > bytes_)",
        tests=("tests/unit/ir",),
    ),
    Fault(
        file="tasks/base/artifacts/files.py",
        right="""if check != f'{CHECK}{_checksum(inner)}"}}':""",
        wrong="if not check.startswith(CHECK):",
        tests=("tests/unit/base",),
    ),
    Fault(
        file="tasks/measuring/lut/choice.py",
        right="return 1 - other.ms / own.ms > max(LEAST_GAIN, noise)",
        wrong="return 1 - other.ms / own.ms > min(LEAST_GAIN, noise)",
        tests=("tests/unit/measuring",),
    ),
    Fault(
        file="tasks/prediction/sums.py",
        right="merged(self.tables, self.all_cardinalities)",
        wrong="merged(self.tables[:1] * 2 + self.tables[2:], self.all_cardinalities)",
        tests=("tests/unit/prediction", "tests/integration/prediction"),
    ),
    Fault(
        file="tasks/search/choose.py",
        right="good = [row for row in rows if row.accuracy >= rule.value * base_accuracy]",
        wrong="good = [row for row in rows if row.accuracy <= rule.value * base_accuracy]",
        tests=("tests/unit/search", "tests/integration/flows/test_choosing.py", "tests/unit/flows"),
    ),
    Fault(
        file="tasks/operations/nightly/noise.py",
        right="level / (len(p_values) - rank)",
        wrong="level / len(p_values) * (rank + 1)",
        tests=("tests/unit/operations",),
    ),
    Fault(
        file="tasks/operations/fleet/decision.py",
        right="elif requests < settings.least_requests:",
        wrong="elif requests > settings.least_requests:",
        tests=("tests/unit/operations",),
    ),
    Fault(
        file="tasks/training/finetune/numerics.py",
        right="loss = loss + (1 - weight) * problem.loss(",
        wrong="loss = loss + weight * problem.loss(",
        tests=("tests/unit/training",),
    ),
    Fault(
        file="tasks/data/boxes.py",
        right="if x1 <= x0 or y1 <= y0:",
        wrong="if x1 <= x0 and y1 <= y0:",
        tests=("tests/unit/data",),
    ),
    Fault(
        file="flows/machine/__init__.py",
        right="fcntl.LOCK_SH if shared else fcntl.LOCK_EX",
        wrong="fcntl.LOCK_SH",
        tests=("tests/unit/flows", "tests/integration/flows/storage/test_shared_locks.py"),
    ),
    Fault(
        file="flows/storage/leases.py",
        right="if is_free and self._is_made(name, number + 1, own):",
        wrong="if self._is_made(name, number + 1, own):",
        tests=("tests/integration/flows/storage",),
    ),
    Fault(
        file="adaptive_runtime/exits/decisions.py",
        right="self.left = self.confidence >= self._bars[self.exit]",
        wrong="self.left = self.confidence > self._bars[self.exit]",
        tests=("tests/unit/runtime", "tests/unit/exits"),
    ),
    Fault(
        file="adaptive_runtime/policy/lookup.py",
        right="return energy <= energy_mj and memory <= memory_mib",
        wrong="return energy <= energy_mj or memory <= memory_mib",
        tests=("tests/unit/runtime",),
    ),
    Fault(
        file="adaptive_runtime/state/slowdown.py",
        right="factor = measured_ms / math.exp(before + level)",
        wrong="factor = measured_ms / math.exp(before - level)",
        tests=("tests/unit/runtime",),
    ),
    Fault(
        file="adaptive_runtime/offload/links/measures.py",
        right="count * 8e-3 / mbps",
        wrong="count * 1e-3 / mbps",
        tests=("tests/unit/runtime/offload", "tests/integration/runtime/offload"),
    ),
    Fault(
        file="profiling_agents/serving/job_queue.py",
        right="if remaining_s > 0 and not self._holds(lease):",
        wrong="if remaining_s > 0 and self._holds(lease):",
        tests=("tests/unit/agents", "tests/integration/agents"),
    ),
    Fault(
        file="profiling_agents/execution/bench.py",
        right="np.quantile(counted, (0.1, 0.5, 0.9))",
        wrong="np.quantile(counted, (0.1, 0.9, 0.5))",
        tests=("tests/unit/agents", "tests/integration/agents"),
    ),
)


def copied(folder: Path) -> Path:
    """A copy of the tracked files as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def caught(tree: Path, fault: Fault, tests: tuple[str, ...]) -> str | None:
    """The first test that fails with the fault; None where all pass. RuntimeError: the fault does not fit the file."""
    file = tree / fault.file
    text = file.read_text(encoding="utf-8")
    if text.count(fault.right) != 1:
        raise RuntimeError(f"{fault.file} has {text.count(fault.right)} times '{fault.right}'; mend the list of faults")
    file.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
    there = [test for test in tests if (tree / test).exists()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *CHOSEN, *there]
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    file.write_text(text, encoding="utf-8")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].split(maxsplit=1)[1] if done.returncode == 1 and failed else None


def main() -> int:
    """Prints a table of the faults; 1 where one is not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="run all unit and integration tests for each fault")
    parser.add_argument("--only", default="", help="only faults in files whose path contains this")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if options.only in fault.file]
    table = Table("file", "fault", "caught by", "s")
    console, missed = Console(), 0
    with tempfile.TemporaryDirectory() as name:
        tree = copied(Path(name))
        for fault in faults:
            began = time.monotonic()
            test = caught(tree, fault, WHOLE if options.whole else fault.tests)
            missed += test is None
            console.print(f"{fault.file}: {test or 'NOT CAUGHT'}", soft_wrap=True)
            table.add_row(fault.file, fault.wrong, test or "nothing", f"{time.monotonic() - began:.0f}")
    console.print(table)
    console.print(f"{len(faults) - missed} of {len(faults)} faults caught")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
