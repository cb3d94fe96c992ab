"""Model cards: what is known of one exported SubNet, for programs (JSON) and for people (Markdown), from the same data."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profiling_agents.messages import Capabilities
from tailor_ir import SuperNet

UNKNOWN = "unknown"
OF_DEVICE = ("backend", "version", "provider", "precision", "threads", "cpu_model", "system", "fingerprint")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What a SubNet was made from. `network`: name, source and licence of the weights that were the start.

    `digests`: by name those of the SuperNet, the look-up table and the predictors.
    """

    network: Mapping[str, str] = field(
        default_factory=lambda: {"name": UNKNOWN, "weights": UNKNOWN, "licence": UNKNOWN}
    )
    data: str = UNKNOWN
    digests: Mapping[str, str] = field(default_factory=dict)


UNKNOWN_PROVENANCE = Provenance()


def architecture(net: SuperNet, config: Mapping[str, Any]) -> Row:
    """What a SubNet is: its operators, and its choices among those of the SuperNet."""
    known = dict(config)
    return {
        "operators": dict(Counter(feature.operator for feature in net.operators(known)).most_common()),
        "variables": [
            {"name": variable.name, "choice": known[variable.name], "choices": list(variable.choices)}
            for variable in net.space.variables
            if variable.name in known
        ],
    }


def device_row(capabilities: Capabilities) -> Row:
    """What tells where latencies were measured."""
    found = capabilities.model_dump(mode="json")
    return {name: found[name] for name in OF_DEVICE}


def markdown(card: Mapping[str, Any]) -> str:
    """The card for people."""
    made, source = card["architecture"], card["made_from"]
    network = source["network"]
    latency, device = card["latency"], card["device"]
    shape = " × ".join(map(str, card["input_shape"]))
    measured = f"{latency['p50_ms']:.4g} ms (p50)" if latency["p50_ms"] else f"not measured: {latency['reason']}"
    parts = [
        f"# SubNet {card['digest']}",
        f"A SubNet of `{network['name']}` for `{source['data']}`.",
        _table(
            ("", ""),
            [
                ("input", f"{shape}, float32"),
                ("MACs, parameters", f"{card['macs'] / 1e6:.4g} M, {card['parameters'] / 1e6:.4g} M"),
                *((f"accuracy, {split}", f"{share:.2%}") for split, share in card["accuracy"].items()),
                (f"latency, batch {card['batch']}", measured),
                ("device", ", ".join(f"{name} {value}" for name, value in device.items() if value is not None)),
                ("weights", network["weights"]),
                ("licence of these weights", network["licence"]),
            ],
        ),
        "## Files",
        _table(
            ("format", "files", "bytes", "checked in", "difference from torch", "allowed"),
            [_file_row(name, file) for name, file in card["files"].items()],
        ),
        "## Architecture",
        _table(
            ("variable", "choice", "choices"),
            [(v["name"], v["choice"], ", ".join(map(str, v["choices"]))) for v in made["variables"]],
        ),
        "Operators: " + ", ".join(f"{count} {name}" for name, count in made["operators"].items()) + ".",
        "## Made from",
        _table(("", "digest"), list(source["digests"].items())),
        "BatchNorm statistics are the SubNet's own. Inputs are normalised outside the files.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _file_row(name: str, file: Mapping[str, Any]) -> tuple[str, ...]:
    if file["state"] != "ok":
        return name, f"none: {file['reason']}", "", "", "", ""
    runtime = f"{file['runtime']} {file['precision']}, " + ("the device" if file["on_device"] else "this machine")
    difference = f"{file['relative_difference']:.2g}"
    return name, ", ".join(file["sha256"]), str(file["bytes"]), runtime, difference, f"{file['tolerance']:g}"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    if not rows:
        return ""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines)
