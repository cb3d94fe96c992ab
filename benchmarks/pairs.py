"""Two checkouts of this project side by side: the same counts and results, and how their times compare.

    python -m benchmarks.pairs OTHER [--pairs 5] [--json FILE] [PRESET …]
    python -m benchmarks.pairs OTHER --zoo [--pairs 1] [--json FILE] [NETWORK …]

OTHER: the folder of another checkout, such as a worktree of an earlier commit. Both run with this Python, in turn, each
time in a process of its own, the order changing from pair to pair, after another network that is not timed. Times are of
processor time, one thread, without Python's collector of cycles; of each the least over all pairs, as a ratio (here / OTHER).
"comparison" is the part of "compile" in which the compiled network is compared with the original. Results (counts, costs of
winners, bytes, sums of predictions, outputs of the largest SubNet) have to be equal: floats to 1e-9 of their size, outputs to
1e-6. Without names, the seven presets of AutoTailor's Table 3.

--zoo: networks of timm, which are compiled alone; without names, the 60 of `benchmarks/zoo.txt`. None may have fewer variables
or SubNets than in OTHER, and all together may take 1.05 of its time, as a geometric mean.
"""

import argparse
import gc
import importlib
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
NETWORKS = Path(__file__).with_name("zoo.txt")
PRESETS = ("resnet50", "mobilenetv2", "mobilenetv3", "proxylessnet", "convnext_tiny", "vit_base", "levit")
SUBNETS, POPULATION, BUDGETS, REPEATS = 50, 100_000, 10, 3
MODULES = ("tasks.search.stage", "benchmarks.search")
PREDICTORS = ("tasks.prediction.resources", "tasks.predict.memory")
"""The module of memory predictors, in this checkout and in earlier ones."""
COMPARISONS = ("_compared", "compare")
"""The function that compares the compiled network with the original, in this checkout and in earlier ones."""
MOST = 1.05
"""Times above this ratio are marked."""


class Stopwatch:
    """Processor time [s] of calls by their names."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, call: Callable[[], T], repeats: int = 1) -> T:
        """What a call returns; its time is the least of several."""
        taken, outermost = [], gc.isenabled()
        if outermost:  # a full pass costs 40 ms, and falls on whichever call makes the object that starts it
            gc.collect()
            gc.disable()
        try:
            for _ in range(repeats):
                start = time.process_time()
                found = call()
                taken.append(time.process_time() - start)
        finally:
            if outermost:
                gc.enable()
        self.seconds[name] = min(taken)
        return found


def child(preset: str, of_zoo: bool) -> dict[str, Any]:
    """Times [s] and results of the checkout whose modules are imported; public names and modules that both have."""
    from benchmarks.elastic import compiled

    import_libraries(preset)
    watch = Stopwatch()
    if of_zoo:
        net = compiled_net(watch, lambda: compiled_of_zoo(preset))
        return {
            "seconds": watch.seconds,
            "results": {"variables": len(net.space.variables), "distinct": net.space.distinct},
        }
    net = compiled_net(watch, lambda: compiled(preset))
    unique = watch.timed("enumerate", lambda: dict(net.unique_operators()))
    codes = watch.timed("codes", lambda: net.space.random_codes(POPULATION, np.random.default_rng(1)), REPEATS)
    results = {
        "variables": len(net.space.variables),
        "distinct": net.space.distinct,
        "unique operators": len(unique),
        "MACs of SubNets": macs_of_subnets(watch, net),
        "codes": int((codes * np.arange(1, codes.shape[1] + 1)).sum()),
        **predictions(watch, net, codes),
        "output": largest_output(watch, net),
    }
    return {"seconds": watch.seconds, "results": results}


def import_libraries(preset: str) -> None:
    """Import all modules and compile another network: libraries are imported where a checkout first needs them."""
    for name in MODULES:
        importlib.import_module(name)
    memory_predictors()
    import torch

    from benchmarks.elastic import compiled

    torch.set_num_threads(1)
    compiled("mobilenetv2" if preset == "resnet50" else "resnet50")
    gc.collect()
    gc.freeze()  # the collector leaves the libraries alone


def take_benchmarks(checkout: Path) -> None:
    """Benchmarks come from the checkout, too, where they are no package yet and an installed one would be found first."""
    folder = checkout / "benchmarks"
    if not (folder / "__init__.py").is_file():
        sys.modules["benchmarks"] = package = ModuleType("benchmarks")
        package.__path__ = [str(folder)]


def memory_predictors() -> Any:
    """The module of memory predictors."""
    return importlib.import_module(next(name for name in PREDICTORS if is_there(name)))


def is_there(module: str) -> bool:
    """Whether a checkout has a module."""
    return bool(importlib.util.find_spec(module.rpartition(".")[0]) and importlib.util.find_spec(module))


def compiled_net(watch: Stopwatch, compiled: Callable[[], Any]) -> Any:
    """The SuperNet that a function compiles; the comparison with the original network has a time of its own, too."""
    import tailor_ir

    watch.seconds["comparison"] = 0.0
    home: Any = getattr(tailor_ir.supernet, "compiling", tailor_ir.supernet)
    made, name = tailor_ir.compile, next(name for name in COMPARISONS if hasattr(home, name))
    compare = getattr(home, name)
    setattr(home, name, lambda *words: watch.timed("comparison", lambda: compare(*words)))
    tailor_ir.compile = lambda *words: watch.timed("compile", lambda: made(*words))
    return compiled()


def compiled_of_zoo(name: str) -> Any:
    """The SuperNet of a network of timm, from random weights."""
    import timm
    import torch

    import tailor_ir

    torch.manual_seed(0)
    model = timm.create_model(name)
    known: Any = model.pretrained_cfg
    return tailor_ir.compile(model.eval(), torch.randn(1, *known["input_size"]))


def macs_of_subnets(watch: Stopwatch, net: Any) -> int:
    """The MACs of random SubNets, whose operators are listed, and which are activated."""
    rng = np.random.default_rng(0)
    configs = [net.space.sample(rng) for _ in range(SUBNETS)]
    operators = watch.timed("operators", lambda: [net.operators(config) for config in configs])
    watch.timed("activate", lambda: [net.elastic.activate(config) for config in configs])
    return sum(feature.macs for each in operators for feature in each)


def predictions(watch: Stopwatch, net: Any, codes: np.ndarray) -> dict[str, float]:
    """Latencies and memory of codes, and the latencies of the winners of an exact search."""
    from benchmarks.search import predictors
    from tasks.search.problem import Problem

    latency, accuracy = predictors(net, 0)
    predicted = watch.timed("latency", lambda: latency.predict(codes), REPEATS)
    kind = memory_predictors().MemoryPredictor
    memory = watch.timed("memory: compile", lambda: kind.compile(net))
    bytes_ = watch.timed("memory: predict", lambda: memory.peak_bytes(codes[:1000]), REPEATS)
    found_ms = watch.timed("exact search", lambda: winners_ms(net, Problem(net.space, latency, accuracy)))
    return {
        "latencies, ms": float(predicted.sum()),
        "peak bytes": int(bytes_.sum()),
        "winners, ms": math.fsum(found_ms),
    }


def winners_ms(net: Any, problem: Any) -> list[float]:
    """Latencies of the winners within budgets from the quickest SubNet's latency to that of the best one."""
    from tasks.search.settings import Settings
    from tasks.search.stage import method_of

    method = method_of(problem, net.space, Settings(method="exact"))
    quickest_ms, best_ms = problem.evaluate(np.stack([method.quickest(), method.best()])).latency_ms.tolist()
    budgets = np.geomspace(quickest_ms, best_ms, BUDGETS)
    found = np.stack([method.winner(np.array([budget])).code for budget in budgets.tolist()])
    return [float(value) for value in problem.evaluate(found).latency_ms]


def largest_output(watch: Stopwatch, net: Any) -> float:
    """The sum of the largest SubNet's outputs, without their signs, for a random input."""
    import torch

    net.elastic.activate(net.max_config)
    x = torch.randn(net.input_shape(net.max_config), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output = watch.timed("forward", lambda: net.elastic.eval()(x), REPEATS)
    return float(output.double().abs().sum())


def run(checkout: Path, preset: str, of_zoo: bool) -> dict[str, Any]:
    """One process that imports the modules of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--child", "zoo" if of_zoo else "preset", preset]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{checkout}: {preset} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def same(name: str, here: float, other: float) -> bool:
    """Whether a result is equal, as far as sums in another order can be."""
    return math.isclose(here, other, rel_tol=1e-6 if name == "output" else 1e-9)


def compare(other: Path, preset: str, pairs: int, of_zoo: bool) -> dict[str, Any]:
    """One preset or network of timm: ratios of times, and the results that differ."""
    here = Path(__file__).resolve().parents[1]
    found: dict[Path, list[dict[str, Any]]] = {here: [], other: []}
    for number in range(pairs):
        for checkout in (here, other) if number % 2 else (other, here):
            found[checkout].append(run(checkout, preset, of_zoo))
    names = found[here][0]["seconds"]
    least = {each: {name: min(row["seconds"][name] for row in rows) for name in names} for each, rows in found.items()}
    results = [found[each][0]["results"] for each in (here, other)]
    return {
        "preset": preset,
        "ratios": {name: least[here][name] / least[other][name] for name in names if least[other][name]},
        "seconds": least[here],
        "results": results[0],
        "others": results[1],
        "different": [name for name in results[0] if not same(name, results[0][name], results[1][name])],
    }


def line_of_preset(rows: list[dict[str, Any]]) -> str:
    """A line on the last of the rows."""
    row = rows[-1]
    marked = [f"{name} {ratio:.2f}{' (!)' if ratio > MOST else ''}" for name, ratio in row["ratios"].items()]
    return f"{row['preset']}: {', '.join(marked)}; different: {', '.join(row['different']) or 'nothing'}"


def line_of_zoo(rows: list[dict[str, Any]]) -> str:
    """A line on the last of the rows, and on all of them."""
    row = rows[-1]
    fewer = [row["preset"] for row in rows if any(row["results"][name] < row["others"][name] for name in row["others"])]
    mean = statistics.geometric_mean(row["ratios"]["compile"] for row in rows)
    compared = statistics.geometric_mean(row["seconds"]["comparison"] / row["seconds"]["compile"] for row in rows)
    return (
        f"{row['preset']}: compile {row['ratios']['compile']:.2f} ({row['seconds']['compile']:.2f} s); of {len(rows)}: mean "
        f"{mean:.3f}, of which the comparison takes {compared:.0%}; fewer variables or SubNets: {', '.join(fewer) or 'none'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("names", nargs="*", metavar="PRESET")
    parser.add_argument("--zoo", action="store_true")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_intermixed_args()
    names, pairs, line = (NETWORKS.read_text().split(), 1, line_of_zoo) if options.zoo else (PRESETS, 5, line_of_preset)
    rows = []
    for name in options.names or names:
        rows.append(compare(options.other.resolve(), name, options.pairs or pairs, options.zoo))
        print(line(rows), flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.path.pop(0)  # this file's own folder; modules come from the checkout that PYTHONPATH names
        take_benchmarks(Path.cwd())
        print(json.dumps(child(sys.argv[3], of_zoo=sys.argv[2] == "zoo")))
    else:
        main()
