"""What AdaptiveNet and AdaScale publish, and tables of it beside what `benchmarks.published_spaces` measures."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.tables import show

Row = dict[str, Any]
POINTS = (1, 3)
SHARES = (0.6, 0.7, 0.8, 0.9)
"""Of the original's latency: the budgets of AdaptiveNet's §7.2."""
ADAPTIVENET, ADASCALE = "AdaptiveNet (MobiCom 2023)", "AdaScale"
SUBNETS = {
    "adaptivenet_mobilenetv2": "2.58e8 (§7.2)",
    "adaptivenet_resnet50": "1.06e5 (§7.2); its recurrence gives 1.06e4",
    "adaptivenet_resnet101": "2.57e17 (§7.2)",
    "adascale": "480 (Table II)",
}
STORAGE = {name: "1.32–2.72 (§7.6)" for name in SUBNETS if name != "adascale"} | {"adascale": "–"}
EPOCHS, GPU_HOURS, NAS_HOURS = 60, 13, 1200
"""AdaptiveNet §7.5: of the alternatives, and of neural architecture search on servers ("more than")."""
ADASCALE_HOURS = 4.575
"""AdaScale Table II: GPU hours of all training."""
STAGE_HOURS, RESNET18_HOURS = (0.42, 0.32, 0.48, 0.37), 1.02
STAGE_MB, RESNET18_MB = (1.04, 5.25, 6.50, 9.65), 42.70
STAGE_MS, RESNET18_MS = (9.10, 13.90, 19.20, 23.70), 16.60
STAGE_ACCURACIES, RESNET18_ACCURACY = (85.99, 87.77, 91.17, 90.82), 88.61
"""AdaScale Table III (CIFAR-10, Jetson NX): its four stages, and ResNet18."""
SEARCH = {"adaptivenet_mobilenetv2": "117.6 s (ResNet50, 2080 Ti, §7.6)", "adascale": "0.043 ms, a look-up (Table II)"}
DIFFERENCES = (
    "Data: ten drawn characters at 64 pixels, 4,000 images for training. AdaptiveNet has ImageNet at 224, AdaScale CIFAR, "
    "Tiny ImageNet and others.",
    "Originals: trained here, for minutes. AdaptiveNet starts from ImageNet weights, whose cost is in none of its hours.",
    "Training: few epochs, since the data are small; core hours of a CPU, not GPU hours. Shares can be compared, hours cannot.",
    "Devices: onnxruntime on one thread of this machine. AdaptiveNet: phone, Jetson Nano, 3090 Ti; AdaScale: "
    "Jetson NX, Raspberry Pi 4B.",
    "Sizes: at 64 pixels MobileNetV2's last maps have 2 × 2 values, so that operators cost more than their MACs say.",
    "Counts: AdaptiveNet's text has 1.06e5 SubNets of ResNet50; its rule gives 10,609, as the preset has. Its count for "
    "ResNet101 is that with two pruned versions of each block, which the text has for MobileNetV2 alone.",
    "Storage: of AdaptiveNet's Table 3 the range is known, not the rows.",
    "Pruned blocks: the most important channels here, the first ones in the public AdaptiveNet.",
    "AdaScale does not say what its 480 variants are made of; the preset's choices are ours. It has no exits (early exits and "
    "training stage by stage: `benchmarks.exit_stages`): alternatives are distilled and tuned as AdaptiveNet's. AdaScale's "
    "stages are small networks of their own, not SubNets of ResNet18.",
    "Depth in AdaScale's preset is not trained by branches and tune, which leave the network as it is; the search sees how "
    "little a shallower SubNet then gets right.",
    "Fronts: AdaptiveNet's accuracies are in figures alone, so that none of its points stands beside ours.",
)  # fmt: skip


def from_scratch_s(cost: Row, subnets: Sequence[Row]) -> float:
    """Seconds to train each of the SubNets as long as the original, in proportion to its MACs."""
    return float(cost["base"]["seconds"] * sum(one["macs"] for one in subnets) / cost["macs"])


def show_spaces(rows: Sequence[Row], markdown: bool) -> None:
    heads = (
        "preset", "SubNets", "published", "variants of blocks", "operators", "compiled, s", "enumerated, s",
        "M MACs", "SuperNet / original", "published", "folder / original", "original, MB", "weights of a SubNet, MB",
    )  # fmt: skip
    cells = [
        (
            row["preset"],
            f"{row['subnets']:,}" if row["subnets"] < 1e12 else f"{row['subnets']:.3e}",
            SUBNETS[row["preset"]],
            f"{sum(row['variants'].values())}: " + ", ".join(f"{n} {kind}" for kind, n in row["variants"].items()),
            str(row["operators"]),
            f"{row['compile_s']:.1f}",
            f"{row['enumerate_s']:.2f}",
            _range([macs / 1e6 for macs in (row["macs"][0], row["macs"][-1])], ".0f"),
            f"{row['supernet_bytes'] / row['original_bytes']:.2f}",
            STORAGE[row["preset"]],
            f"{row['saved_bytes'] / row['original_saved_bytes']:.2f}",
            f"{row['original_bytes'] / 1e6:.1f}",
            _range([size / 1e6 for size in row["weights_bytes"]], ".1f"),
        )
        for row in rows
    ]
    show(heads, cells, markdown=markdown, width=220)


def _range(ends: Sequence[float], form: str) -> str:
    return f"{min(ends):{form}} – {max(ends):{form}}"


def show_costs(rows: Sequence[Row], fronts: Mapping[str, Row], markdown: bool) -> None:
    heads = (
        "preset", "original: epochs", "s", "compiled, first weights: s", "branches: epochs", "s", "tune: epochs", "s",
        "alternatives / original", "front from scratch / both", "original, accuracy", "largest SubNet",
    )  # fmt: skip
    cells = []
    for row in rows:
        name, own_s = row["preset"], row["branches"]["seconds"] + row["tune"]["seconds"]
        base_s = row["base"]["seconds"]
        scratch = "–"
        if name in fronts:
            scratch = f"{from_scratch_s(row, fronts[name]['front']) / (base_s + own_s):.1f}"
        base, *alternatives = (
            (f"{row[phase]['epochs']}", f"{row[phase]['seconds']:.0f}") for phase in ("base", "branches", "tune")
        )
        times = (*base, f"{row['first_weights_s']:.0f}", *alternatives[0], *alternatives[1])
        accuracies = (f"{row[key]:.2%}" for key in ("accuracy", "largest_accuracy"))
        cells.append((name, *times, f"{own_s / base_s:.2f}", scratch, *accuracies))
    show(heads, cells, markdown=markdown, width=200)


def show_ranges(cost: Row, front: Row | None, markdown: bool) -> None:
    ranges = (front["ranges"] if front else None) or cost["ranges"]
    evaluations = range(len(ranges[0]["accuracies"])) if ranges else range(0)
    epochs = cost["branches"]["epochs"] + cost["tune"]["epochs"]
    heads = [
        "preset",
        "range",
        "SubNets",
        *(f"after {epochs * (n + 1) // len(evaluations)} epochs" for n in evaluations),
    ]
    cells = [
        (cost["preset"], one["label"], str(one["subnets"]), *(f"{share:.1%}" for share in one["accuracies"]))
        for one in ranges
    ]
    show(heads, cells, markdown=markdown)


def show_fronts(rows: Iterable[Row], markdown: bool) -> None:
    heads = (
        "preset", "original", "SubNets of the front", "latency, ms", "accuracy",
        *(f"fastest within {points} points" for points in POINTS),
        *(f"best within {share:.0%}" for share in SHARES), "search, s",
    )  # fmt: skip
    cells = []
    for row in rows:
        original, front = row["original"], row["front"]
        cells.append(
            (
                row["preset"],
                f"{original['measured_ms']:.3f} ms, {original['accuracy']:.1%}",
                f"{len(front)} (predicted: {row['predicted_points']})",
                _range([one["measured_ms"] for one in front], ".3f"),
                _range([one["accuracy"] for one in front], ".1%"),
                *(_beside(row["within"][str(points)], original) for points in POINTS),
                *(_beside(row["at"][str(share)], original) for share in SHARES),
                f"{row['stages_s'].get('search', float('nan')):.1f}",
            )
        )
    show(heads, cells, markdown=markdown, width=220)


def _beside(one: Row | None, original: Row) -> str:
    """A SubNet by its share of the original's latency and what it has more in points."""
    if one is None:
        return "–"
    points = 100 * (one["accuracy"] - original["accuracy"])
    return f"{one['measured_ms'] / original['measured_ms']:.0%}, {points:+.1f}"


def published_rows(costs_of: Mapping[str, Row], fronts: Mapping[str, Row]) -> list[tuple[str, str, str, str]]:
    """Paper, figure, what it publishes, and what is measured here, as far as it is."""
    ms, mb = (
        [value / whole for value in values] for values, whole in ((STAGE_MS, RESNET18_MS), (STAGE_MB, RESNET18_MB))
    )
    points = [value - RESNET18_ACCURACY for value in STAGE_ACCURACIES]
    adaptivenet, adascale = "adaptivenet_mobilenetv2", "adascale"
    rows = [
        (ADAPTIVENET, "training of the alternatives (§7.5)", f"{EPOCHS} epochs, about {GPU_HOURS} GPU hours; NAS: more than "
         f"{NAS_HOURS}, {NAS_HOURS / GPU_HOURS:.0f} times as much", _training(costs_of.get(adaptivenet))),
        (ADASCALE, "training (Table II)", f"{ADASCALE_HOURS} GPU hours, {ADASCALE_HOURS / GPU_HOURS:.2f} of AdaptiveNet's",
         _training(costs_of.get(adascale))),
        (ADASCALE, "all stages / ResNet18, training (Table III)", f"{sum(STAGE_HOURS) / RESNET18_HOURS:.2f}",
         _share_of_training(costs_of.get(adascale))),
        (ADASCALE, "stages / ResNet18, latency (Table III)", _range(ms, ".2f"), _latencies(fronts.get(adascale))),
        (ADASCALE, "stages less ResNet18, points (Table III)", _range(points, "+.1f"), _points(fronts.get(adascale))),
        (ADASCALE, "stages / ResNet18, storage (Table III)", _range(mb, ".2f"), _weights(fronts.get(adascale))),
    ]  # fmt: skip
    for paper, preset in ((ADAPTIVENET, adaptivenet), (ADASCALE, adascale)):
        front = fronts.get(preset)
        rows.append(
            (paper, "search", SEARCH[preset], f"{front['stages_s']['search']:.1f} s, every budget" if front else "–")
        )
    return rows


def _training(cost: Row | None) -> str:
    if cost is None:
        return "–"
    epochs = cost["branches"]["epochs"] + cost["tune"]["epochs"]
    seconds = cost["branches"]["seconds"] + cost["tune"]["seconds"]
    return f"{epochs} epochs of {cost['images']:,} images, {seconds / 3600:.2f} core hours"


def _share_of_training(cost: Row | None) -> str:
    if cost is None:
        return "–"
    share = (cost["branches"]["seconds"] + cost["tune"]["seconds"]) / cost["base"]["seconds"]
    return f"{1 + share:.2f} with the original's own, {share:.2f} without"


def _latencies(front: Row | None) -> str:
    whole = front and front["original"]["measured_ms"]
    return _range([one["measured_ms"] / whole for one in front["front"]], ".2f") if front and whole else "–"


def _points(front: Row | None) -> str:
    whole = front and front["original"]["accuracy"]
    return _range([100 * (one["accuracy"] - whole) for one in front["front"]], "+.1f") if front and whole else "–"


def _weights(front: Row | None) -> str:
    whole = front and front["original"]["parameters"]
    return _range([one["parameters"] / whole for one in front["front"]], ".2f") if front and whole else "–"
