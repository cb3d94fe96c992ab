"""The memory budget of a pool holds in a process of its own, while SubNets serve in turn."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import tailor_ir
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.pool import SubNetPool
from profiling_agents.startup import python_path
from tests.support.ir.networks import perturb
from tests.support.runtime.bundled import write_plain_bundle

SPACE = {"*.width_mult": [0.5, 1.0]}
SUBNETS = 5
BETWEEN_RUNS_MIB = 4.0
"""The same SubNets differed so far between processes (benchmarks/README.md)."""
SERVE = """
import json, sys, threading, numpy as np, adaptive_runtime
folder, budget_mib, rounds = sys.argv[1], float(sys.argv[2]) or None, int(sys.argv[3])
seen, over = [], threading.Event()
with adaptive_runtime.load(folder, memory_mib=budget_mib) as model:
    def look():
        while not over.wait(0.002):
            seen.append(model.pool.used_mib)
    x = np.zeros((1, 3, 32, 32), np.float32)
    model.infer(x)
    first = model.pool.used_mib
    looking = threading.Thread(target=look)
    looking.start()
    for digest in [one.digest for one in model.subnets] * rounds:
        model.use(digest)
        for _ in range(20):
            assert model.infer(x).subnet == digest
    warm = len(model.state.warm)
    over.set()
    looking.join()
    print(json.dumps({"first": first, "peak": max(seen), "warm": warm, "switches": model.state.switches}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose largest SubNet has 45 MB of weights."""
    torch.manual_seed(0)
    network = perturb(timm.create_model("resnet18", num_classes=10))
    net = tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), SPACE)
    names = [variable.name for variable in net.space.variables]
    configs = [net.max_config, net.min_config]
    configs += [{**net.min_config, name: net.max_config[name]} for name in names]
    folder = tmp_path_factory.mktemp("memory") / "bundle"
    write_plain_bundle(net, configs[:SUBNETS], folder)
    return folder


def served(folder: Path, budget_mib: float = 0.0, rounds: int = 1) -> dict[str, Any]:
    command = [sys.executable, "-c", SERVE, str(folder), str(budget_mib), str(rounds)]
    environment = os.environ | {"PYTHONPATH": python_path(os.environ), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_all_subnets_serve_within_1_3_times_the_memory_of_the_largest(folder: Path) -> None:
    free = served(folder)
    assert free["warm"] == SUBNETS
    budget_mib = 1.3 * free["first"]
    assert free["peak"] > budget_mib + 2 * BETWEEN_RUNS_MIB  # else the budget would show nothing
    kept = served(folder, budget_mib, rounds=6)
    assert kept["peak"] <= budget_mib + BETWEEN_RUNS_MIB
    assert kept["switches"] >= 6 * SUBNETS - 1
    assert kept["warm"] < SUBNETS


@pytest.mark.long
def test_where_the_budget_holds_one_subnet_alone_requests_wait_and_none_is_lost(folder: Path) -> None:
    kept = served(folder, 1.0, rounds=2)
    assert kept["warm"] == 1
    assert kept["switches"] >= 2 * SUBNETS - 1


def test_a_need_does_not_shrink_where_freed_memory_is_used_again_and_an_excess_is_told_once(folder: Path) -> None:
    lines: list[str] = []
    pool = SubNetPool(OpenBundle.open(folder), ("onnx",), 1.0, lines.append, prepares=False, start_mib=0.0)
    answerer = pool.answerer(pool.whole_variants[0])
    (part,) = answerer.parts
    estimated_mib = part.need_mib
    pool.warm(answerer)
    assert part.need_mib >= estimated_mib
    assert [line.split(":")[0] for line in lines] == [part.name]
    assert "the memory budget is 1 MiB" in lines[0]
    assert 0 < part.kept_mib <= part.need_mib
    needs_mib, part.loads = (part.need_mib, part.kept_mib), object
    pool.free(answerer)
    pool.warm(answerer)
    assert (part.need_mib, part.kept_mib) == needs_mib
    assert len(lines) == 1
    pool.close()


def test_two_subnets_are_held_where_there_is_room_to_load_the_second_beside_the_first(folder: Path) -> None:
    pool = SubNetPool(OpenBundle.open(folder), ("onnx",), None, print, prepares=False, start_mib=0.0)
    first, second = (pool.answerer(variant) for variant in pool.whole_variants[:2])
    pool.warm(first)
    loading_mib = first.parts[0].need_mib - first.parts[0].kept_mib
    pool.budget_mib = pool.used_mib + second.need_mib
    assert not pool.holds(first, second)
    pool.budget_mib += loading_mib + 2.0
    assert pool.holds(first, second)
    pool.close()
