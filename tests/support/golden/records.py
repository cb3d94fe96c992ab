"""What a SuperNet says about itself and its SubNets, as plain data: little of it in full, the rest as digests."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from solvers.tables import Table
from tailor_ir import OperatorFeature, SuperNet
from tailor_ir.spaces.space import Config

CODES = 200
CONFIGS = 20
EXPORTS = 3
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def digest(value: Any) -> str:
    """sha256 of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def rounded(values: Iterable[float]) -> list[float]:
    """12 digits of each."""
    return [float(f"{value:.12g}") for value in values]


def lettered(codes: np.ndarray) -> list[str]:
    """Codes (n, V), a text of V letters each."""
    return ["".join(LETTERS[choice] for choice in row) for row in codes.tolist()]


def random_codes(net: SuperNet, count: int, seed: int = 0) -> np.ndarray:
    """Codes (count, V), not canonical; the first two are the largest and the smallest."""
    rng = np.random.default_rng(seed)
    random = rng.integers(0, net.space.cardinalities, size=(count - 2, len(net.space.variables)))
    return np.concatenate([net.space.encode([net.max_config, net.min_config]), random])


def canonical_codes(net: SuperNet, count: int, seed: int = 0) -> np.ndarray:
    """The same, canonical."""
    return net.space.canonical_codes(random_codes(net, count, seed))


def random_configs(net: SuperNet, count: int, seed: int = 0) -> list[Config]:
    """The largest, the smallest, and random ones."""
    return [net.space.decode(row) for row in random_codes(net, count, seed)]


def operators_of(features: Iterable[OperatorFeature]) -> list[dict[str, Any]]:
    """Operators in the order of their digests."""
    return [feature.to_json() for feature in sorted(features, key=lambda feature: feature.digest)]


def unique_operators(net: SuperNet) -> dict[str, Any]:
    """All operators of all SubNets."""
    features = net.unique_operators()
    kinds = Counter(feature.operator for feature in features)
    return {
        "count": len(features),
        "by_kind": dict(sorted(kinds.items())),
        "macs": sum(feature.macs for feature in features),
        "parameters": sum(feature.parameters for feature in features),
        "sha256": digest(operators_of(features)),
    }


def operator_terms(net: SuperNet, milliseconds: Callable[[OperatorFeature], float]) -> list[list[Any]]:
    """Each term: the variables it depends on, choices that have the operator, their MACs and milliseconds, a digest of all."""
    found = []
    for term in net.operator_terms():
        features = [feature for feature in term.features.values() if feature]
        names = [feature.digest if feature else "" for feature in term.features.values()]
        variables, table = _reduced(term.variables, np.array(names).reshape(term.features.numbers.shape))
        by_name = {feature.digest: feature for feature in features}
        present = [by_name[name] for name in table.ravel().tolist() if name]
        (sum_ms,) = rounded([sum(map(milliseconds, present))])
        macs = sum(feature.macs for feature in present)
        found.append([list(variables), len(present), macs, sum_ms, digest([table.shape, table.tolist()])[:16]])
    return found


def _reduced(columns: Sequence[int], table: np.ndarray) -> tuple[tuple[int, ...], np.ndarray]:
    """A table without the columns on which it does not depend."""
    kept = []
    for axis in reversed(range(table.ndim)):
        first = table.take([0], axis)
        if (table == first).all():
            table = first.squeeze(axis)
        else:
            kept.append(columns[axis])
    return tuple(reversed(kept)), table


def choice_means(tables: Iterable[Table], cardinalities: Sequence[int]) -> list[list[float]]:
    """For each variable and choice, the mean of the tables' sum over all codes with that choice."""
    means = [np.zeros(count) for count in cardinalities]
    for columns, values in tables:
        for column, mean in enumerate(means):
            others = tuple(axis for axis, own in enumerate(columns) if own != column)
            mean += np.mean(values, axis=others)
    return [rounded(mean) for mean in means]


def space(net: SuperNet) -> dict[str, Any]:
    """Variables, counts, and which codes are the same SubNet."""
    return {
        "variables": [[v.name, v.kind, v.scope, list(v.choices)] for v in net.space.variables],
        "modifications": net.space.modifications,
        "codes": net.space.codes,
        "distinct": net.space.distinct,
        "dropped": list(net.space.dropped),
        "info": [[v.parameters_saved, v.macs_saved, len(v.nodes), list(v.axes)] for v in net.space.info],
        "info_sha256": digest([asdict(v) for v in net.space.info]),
        "canonical_codes_sha256": digest(lettered(canonical_codes(net, CODES))),
    }


def subnets(net: SuperNet, configs: Sequence[Config]) -> dict[str, list[Any]]:
    """Each SubNet's name, operators in order, and counts."""
    operators = [net.operators(config) for config in configs]
    return {
        "digest": [net.space.digest(config) for config in configs],
        "input_shape": [list(net.input_shape(config)) for config in configs],
        "operators": [len(found) for found in operators],
        "operators_sha256": [digest([f.to_json() for f in found])[:16] for found in operators],
        "placed_sha256": [digest(_placed(net, config))[:16] for config in configs],
        "macs": [net.macs(config) for config in configs],
        "parameters": [net.parameters(config) for config in configs],
        "peak_activation_bytes": [net.peak_activation_bytes(config) for config in configs],
        "peak_arena_bytes": [net.peak_arena_bytes(config) for config in configs],
    }


def _placed(net: SuperNet, config: Config) -> Any:
    found = net.placed_operators(config)
    rows = [[one.feature.digest, list(one.inputs), list(one.outputs)] for one in found.operators]
    return [rows, list(found.inputs), list(found.outputs)]


def exported(net: SuperNet, config: Config, file: Path, *, weights: bool) -> dict[str, Any]:
    """The structure of a SubNet's ONNX file: operators, names, shapes and types; no weight's value."""
    net.export(config, file, weights=weights)
    model = onnx.shape_inference.infer_shapes(onnx.load(file))
    graph = model.graph
    nodes = [[n.name, n.op_type, list(n.input), list(n.output), _attributes(n)] for n in graph.node]
    stored = sorted([t.name, t.data_type, list(t.dims)] for t in graph.initializer)
    values = sorted([_value(v) for v in (*graph.input, *graph.value_info, *graph.output)], key=str)
    return {
        "opset": [[o.domain, o.version] for o in model.opset_import],
        "nodes": dict(sorted(Counter(n.op_type for n in graph.node).items())),
        "initializers": len(stored),
        "sha256": digest([nodes, stored, values]),
    }


def _value(value: onnx.ValueInfoProto) -> list[Any]:
    kind = value.type.tensor_type
    return [value.name, kind.elem_type, [d.dim_value or d.dim_param for d in kind.shape.dim]]


def _attributes(node: onnx.NodeProto) -> list[Any]:
    """Numbers and texts; of tensors type and shape alone."""
    plain = ((a.name, onnx.helper.get_attribute_value(a)) for a in node.attribute)
    return sorted(([name, repr(_plain(value))] for name, value in plain), key=str)


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return [value.data_type, list(value.dims)]
    return list(value) if not isinstance(value, int | float | bytes | str) else value
