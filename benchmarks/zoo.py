"""Every network of a list as a SuperNet: what is elastic, whether SubNets are equal everywhere, time and memory.

    python -m benchmarks.zoo [--subnets 10] [--alternatives | --exits] [--json FILE] [--markdown] [NETWORK …]

Without names, the 60 networks of `benchmarks/zoo.txt`. Networks come from timm with random weights and BatchNorm statistics
that are all different, at their own input size; each is read in a process of its own. Differences are the largest absolute
one over all outputs, relative to the largest output. FILE grows network by network, and a second run goes on from there.

--alternatives: all kinds of alternatives at every block, beside the proposed sizes. Then weights of the network must be
bit-equal in the SuperNet, and the operators of random SubNets among the listed ones.

--exits: a few exits beside the proposed sizes, and the same conditions; and for the largest and random SubNets, what the chain
of segments gives at the last exit is what the whole network gives, and at each exit what the SubNet that ends there gives.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

NETWORKS = Path(__file__).with_name("zoo.txt")
ALTERNATIVES = ("merged", "pruned", "low_rank", "grouped", "separable", "fire", "ghost")
SPACES = {"sizes": None, "alternatives": {"*": "auto", "alternatives": "auto"}, "exits": {"*": "auto", "exits": "auto"}}
EXIT_HEADS = ("exits, with shares of the MACs", "parameters of heads", "difference of chains")
KINDS = ("resolution", "depth", "width_mult", "growth_mult", "expand_ratio", "kernel_size", "heads", "v_scale")
LIMIT_S = 900
TOLERANCE, CHAIN_TOLERANCE = 1e-4, 1e-5
CHAINS = 3
"""SubNets whose segments are compared."""


def measure(name: str, subnets: int, space: str) -> dict[str, Any]:
    """What one network became; the caller's process is used up by it."""
    import timm
    import torch

    import tailor_ir
    from tests.support.ir.invariants import difference
    from tests.support.ir.networks import perturb

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = perturb(timm.create_model(name))
    weights_mib = sum(t.numel() * t.element_size() for t in model.state_dict().values()) / 2**20
    known: Any = model.pretrained_cfg
    sample = torch.randn(1, *known["input_size"])
    before_mib = _peak_mib()
    start = time.perf_counter()
    net = tailor_ir.compile(model, sample, SPACES[space])
    compile_s = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        net.export(net.max_config, Path(folder) / "largest.onnx")
        export_s = time.perf_counter() - start
        peak_mib = _peak_mib() - before_mib
        kinds = Counter(v.kind for v in net.space.variables)
        row: dict[str, Any] = {
            "network": name,
            **{kind: kinds[kind] for kind in KINDS},
            "distinct": str(net.space.distinct),
            "compile_s": round(compile_s, 2),
            "compile_and_export_s": round(export_s, 2),
            "peak_mib": round(peak_mib),
            "peak_allowed_mib": round(6 * weights_mib + 1024),
            "smallest_macs": net.macs(net.min_config) / net.macs(net.max_config),
            "smallest_parameters": net.parameters(net.min_config) / net.parameters(net.max_config),
            "dropped": list(net.space.dropped),
        }
        with torch.no_grad():
            net.elastic.eval()
            row["largest"] = difference(model(sample), net.elastic(sample))
            row |= _compare(net, subnets, Path(folder))
    if space == "sizes":
        return row
    own = _alternatives(net) if space == "alternatives" else _exits(net) | _chains(net)
    return row | own | _listed(net, model, subnets)


def _alternatives(net: Any) -> dict[str, Any]:
    """Blocks that have alternatives of each kind."""
    from tailor_ir.alternatives import ALTERNATIVES as RECORDS

    choices = [set(v.choices) for v in net.space.variables if v.kind == "block"]
    blocks = {name: sum(not own.isdisjoint(RECORDS[name].choices) for own in choices) for name in ALTERNATIVES}
    return {"blocks": len(choices), "alternatives": blocks}


def _exits(net: Any) -> dict[str, Any]:
    """Places of exits with their shares of the whole network's multiply-accumulates, and the share of parameters of heads."""
    places = next(v.choices for v in net.space.variables if v.kind == "exit")
    graph, whole = net.structure.graph, net.macs(net.max_config)
    heads = sum(net.elastic.tensor(name).numel() for name in graph.parameters if name.startswith("exit/"))
    return {
        "exits": {place: net.macs({"exit": place}) / whole for place in places[:-1]},
        "head_parameters": heads / net.parameters(net.max_config),
    }


def _chains(net: Any) -> dict[str, float]:
    """Largest differences of chains of segments: from the whole network at the last exit, from the SubNets at all exits."""
    import numpy as np
    import torch

    from tests.support.ir.invariants import difference

    rng, last, exits = np.random.default_rng(1), 0.0, 0.0
    drawn = [net.max_config, *({**net.space.sample(rng), "exit": "last"} for _ in range(CHAINS - 1))]
    with torch.no_grad():
        for config in map(net.space.canonical, drawn):
            segments = net.segments(config)
            x = torch.randn(net.input_shape(config, 2))
            values = {segments[0].inputs[0]: x}
            for segment in segments:
                answer = segment(values)
                exits = max(exits, difference(net.build({**config, "exit": segment.exit})(x), answer))
            net.elastic.activate(config)
            last = max(last, difference(net.elastic(x), answer))
    return {"chain_last": last, "chain_exits": exits}


def _listed(net: Any, model: Any, subnets: int) -> dict[str, Any]:
    """Weights that are the network's, and operators that were not listed."""
    import numpy as np
    import torch

    own = net.elastic.tensor
    same = [
        torch.equal(own(name), tensor) or (tensor.ndim == 2 and torch.equal(own(name).T, tensor))  # of a product
        for name, tensor in model.state_dict().items()
        if name in net.structure.graph.initializers
    ]
    start = time.perf_counter()
    unique = net.unique_operators().keys()
    enumerate_s = time.perf_counter() - start
    rng = np.random.default_rng(0)
    found = {
        f
        for config in [net.min_config, *(net.space.sample(rng) for _ in range(subnets))]
        for f in net.operators(config)
    }
    return {
        "tensors": len(same),
        "changed_tensors": len(same) - sum(same),
        "unique_operators": len(unique),
        "enumerate_s": round(enumerate_s, 2),
        "outside": len(found - unique),
    }


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _compare(net: Any, subnets: int, folder: Path) -> dict[str, float]:
    """Largest differences between elastic, built and exported over the smallest and random SubNets."""
    import numpy as np
    import onnxruntime
    import torch

    from tests.support.ir.invariants import difference

    rng = np.random.default_rng(0)
    built, exported = 0.0, 0.0
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for config in [net.min_config, *(net.space.sample(rng) for _ in range(subnets - 1))]:
        x = torch.randn(net.input_shape(config, 2))
        net.elastic.activate(config)
        expected = net.elastic(x)
        built = max(built, difference(expected, net.build(config)(x)))
        net.export(config, folder / "subnet.onnx", batch=2)
        session = onnxruntime.InferenceSession(folder / "subnet.onnx", options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        exported = max(exported, difference(expected, list(map(torch.from_numpy, outputs))))
    return {"built": built, "exported": exported}


def _in_own_process(name: str, subnets: int, space: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.zoo", "--one", name, "--subnets", str(subnets)]
    command += [] if space == "sizes" else [f"--{space}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"network": name, "error": f"not ready after {LIMIT_S} s"}
    if done.returncode:
        return {"network": name, "error": (done.stderr.strip().splitlines() or ["killed"])[-1][:300]}
    return json.loads(done.stdout.splitlines()[-1])


def bars(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Bar, limit, measured."""
    good = [row for row in rows if "error" not in row]
    times = sorted(row["compile_and_export_s"] for row in good)

    def count(holds: Any) -> str:
        return f"{sum(bool(holds(row)) for row in good)} of {len(rows)}"

    equal = count(lambda r: all(r[key] <= TOLERANCE for key in ("largest", "built", "exported")))
    return [
        ("compile", "all", count(lambda row: True)),
        ("largest = original, elastic = built = exported (1e-4)", "all", equal),
        (
            "elastic width or expansion",
            ">= 57",
            count(lambda r: r["width_mult"] + r["growth_mult"] + r["expand_ratio"]),
        ),
        ("elastic depth", ">= 50", count(lambda r: r["depth"])),
        ("elastic resolution", ">= 50", count(lambda r: r["resolution"])),
        ("smallest SubNet <= 50 % of the MACs", ">= 54", count(lambda r: r["smallest_macs"] <= 0.5)),
        ("compile and export, median", "<= 15 s", f"{times[len(times) // 2]:.1f} s"),
        ("compile and export, largest", "<= 120 s", f"{times[-1]:.1f} s"),
        ("memory within 6 x weights + 1 GiB", "all", count(lambda r: r["peak_mib"] <= r["peak_allowed_mib"])),
    ]


def bars_beside_sizes(rows: list[dict[str, Any]], space: str) -> list[tuple[str, str, str]]:
    """Bar, limit, measured, where alternatives or exits were asked for."""
    good = [row for row in rows if "error" not in row]

    def count(holds: Any) -> str:
        return f"{sum(bool(holds(row)) for row in good)} of {len(rows)}"

    equal = count(lambda r: all(r[key] <= TOLERANCE for key in ("largest", "built", "exported")))
    slowest = max((row["enumerate_s"] for row in good), default=0.0)
    if space == "alternatives":
        wished = "all kinds"
        found = [
            ("alternatives found", ">= 50", count(lambda r: r["blocks"])),
            ("three kinds and more", ">= 45", count(lambda r: sum(n > 0 for n in r["alternatives"].values()) >= 3)),
        ]
    else:
        wished = "exits"
        found = [
            (
                "chain of segments = whole network at the last exit (1e-5)",
                "all that compile",
                count(lambda r: r["chain_last"] <= CHAIN_TOLERANCE),
            ),
            (
                "chain of segments = SubNets at all exits (1e-5)",
                "all that compile",
                count(lambda r: r["chain_exits"] <= CHAIN_TOLERANCE),
            ),
            ("three exits", "–", count(lambda r: len(r["exits"]) == 3)),
        ]
    return [
        (f"compile with {wished} and the proposed sizes", ">= 55", count(lambda row: True)),
        ("largest = original, elastic = built = exported (1e-4)", "all that compile", equal),
        (
            "weights of the network bit-equal in the SuperNet",
            "all that compile",
            count(lambda r: not r["changed_tensors"]),
        ),
        ("operators of random SubNets among the listed ones", "all that compile", count(lambda r: not r["outside"])),
        *found,
        ("unique operators listed, slowest network", "–", f"{slowest:.1f} s"),
    ]


def _bars(rows: list[dict[str, Any]], space: str) -> list[tuple[str, str, str]]:
    return bars(rows) if space == "sizes" else bars_beside_sizes(rows, space)


def _show(rows: list[dict[str, Any]], space: str) -> None:
    kinds = KINDS if space == "sizes" else ()
    columns = ("network", *kinds, "largest", "built", "exported", "smallest_macs", "compile_and_export_s", "peak_mib")
    columns += {
        "sizes": (),
        "alternatives": ("blocks", "alternatives"),
        "exits": ("exits", "head_parameters", "chain_last", "chain_exits"),
    }[space]
    columns += () if space == "sizes" else ("changed_tensors", "outside")
    table = Table(*(c.replace("_", " ") for c in columns))
    for row in rows:
        if "error" in row:
            table.add_row(row["network"], row["error"])
        else:
            table.add_row(*(f"{row[c]:.2g}" if isinstance(row[c], float) else str(row[c]) for c in columns))
    summary = Table("bar", "limit", "measured")
    for bar in _bars(rows, space):
        summary.add_row(*bar)
    console = Console(width=170)
    console.print(table)
    console.print(summary)


def _markdown(rows: list[dict[str, Any]]) -> None:
    """The tables of benchmarks/README.md."""
    print("| bar | limit | measured |\n|---|---|---|")
    for bar in bars(rows):
        print(f"| {' | '.join(bar)} |")
    heads = ("network", "resolution", "depths", "widths", "expansions", "kernels", "heads", "largest difference")
    print(f"\n| {' | '.join(heads)} | smallest MACs | compile and export, s | memory, MiB | why not more |")
    print("|---" * (len(heads) + 4) + "|")
    for row in rows:
        if "error" in row:
            print(f"| {row['network']} |" + " |" * 10 + f" {row['error']} |")
            continue
        widths = row["width_mult"] + row["growth_mult"]
        counts = (row["depth"], widths, row["expand_ratio"], row["kernel_size"], row["heads"] + row["v_scale"])
        worst = max(row[key] for key in ("largest", "built", "exported"))
        measured = (
            f"{worst:.1e}",
            f"{row['smallest_macs']:.1%}",
            f"{row['compile_and_export_s']:.1f}",
            row["peak_mib"],
        )
        cells = (row["network"], "yes" if row["resolution"] else "–", *(n or "–" for n in counts), *measured)
        print(f"| {' | '.join(map(str, cells))} | {'; '.join(_missing(row))} |")


def _markdown_beside_sizes(rows: list[dict[str, Any]], space: str) -> None:
    """The tables of benchmarks/README.md where alternatives or exits were asked for."""
    print("| bar | limit | measured |\n|---|---|---|")
    for bar in bars_beside_sizes(rows, space):
        print(f"| {' | '.join(bar)} |")
    own = ("blocks", *ALTERNATIVES) if space == "alternatives" else EXIT_HEADS
    heads = ("network", *own, "largest difference", "operators", "compile and export, s")
    print(f"\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for row in rows:
        if "error" in row:
            print(f"| {row['network']} | {row['error']} |" + " |" * (len(heads) - 2))
            continue
        worst = max(row[key] for key in ("largest", "built", "exported"))
        cells = _cells_of_blocks(row) if space == "alternatives" else _cells_of_exits(row)
        measured = (f"{worst:.1e}", row["unique_operators"], f"{row['compile_and_export_s']:.1f}")
        print(f"| {' | '.join(map(str, (row['network'], *cells, *measured)))} |")


def _cells_of_blocks(row: dict[str, Any]) -> list[Any]:
    return [row["blocks"] or "–", *(row["alternatives"][name] or "–" for name in ALTERNATIVES)]


def _cells_of_exits(row: dict[str, Any]) -> list[Any]:
    places = ", ".join(f"{place} {share:.0%}" for place, share in row["exits"].items())
    return [places, f"{row['head_parameters']:.1%}", f"{max(row['chain_last'], row['chain_exits']):.1e}"]


def _missing(row: dict[str, Any]) -> list[str]:
    """Why a network has no depth or no resolution."""
    reasons = [] if row["depth"] else ["depth: no block keeps its axes"]
    return reasons if row["resolution"] else [*reasons, *(d for d in row["dropped"] if d.startswith("resolution"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("--subnets", type=int, default=10)
    for space in ("alternatives", "exits"):
        parser.add_argument(f"--{space}", action="store_const", const=space, dest="space", default="sizes")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true", help="print the tables of the README")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.subnets, arguments.space)))
        return
    file = arguments.json
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file and file.exists() else []
    names = arguments.networks or NETWORKS.read_text().split()
    for name in track([n for n in names if n not in [row["network"] for row in rows]], "networks"):
        rows.append(_in_own_process(name, arguments.subnets, arguments.space))
        if file:
            with file.open("a") as stream:
                stream.write(json.dumps(rows[-1]) + "\n")
    if arguments.markdown:
        if arguments.space == "sizes":
            _markdown(rows)
        else:
            _markdown_beside_sizes(rows, arguments.space)
    else:
        _show(rows, arguments.space)


if __name__ == "__main__":
    main()
