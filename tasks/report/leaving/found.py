"""Policies of exits as data of the report, and as a card of the headline."""

import base64
from pathlib import Path

from tasks.base.pages.text import milliseconds, percent
from tasks.exits.policies import POLICIES_FILE, LeavingImage, Policies, SubnetPolicy
from tasks.report.looks import Row

SHOWN_CLASSES = 5
"""Number of classes shown at each end."""


def policies(folder: Path | None) -> Row | None:
    """Content of the folder with `policies.json`, with pictures inside; None if the space has no exits.
    best: digest of the SubNet that is shown in detail. slow_classes: the classes that leave last, the last one first.
    """
    if folder is None:
        return None
    found = Policies.read(folder / POLICIES_FILE)
    rows = [_subnet(row, folder) for row in found.subnets]
    best = found.best
    return {
        **found.model_dump(mode="json", exclude={"version", "subnets"}),
        "subnets": rows,
        "best": None if best is None else best.digest,
    }


def _subnet(row: SubnetPolicy, folder: Path) -> Row:
    tested = row.tested
    return {
        **row.model_dump(mode="json", exclude={"earliest", "latest", "classes"}),
        "lost_points": None if tested is None else tested.lost_points,
        "classes": [one.to_json() for one in row.classes],
        "fast_classes": [one.name for one in row.classes[:SHOWN_CLASSES]],
        "slow_classes": [one.name for one in row.classes[::-1][:SHOWN_CLASSES]],
        "earliest": [_picture(one, folder) for one in row.earliest],
        "latest": [_picture(one, folder) for one in row.latest],
    }


def _picture(image: LeavingImage, folder: Path) -> Row:
    content = base64.b64encode((folder / image.file).read_bytes()).decode()
    return {**image.model_dump(mode="json", exclude={"file"}), "png": f"data:image/png;base64,{content}"}


def card(device: Row) -> list[dict[str, str]]:
    """The saving by leaving early, in a line; the reason if nothing is saved."""
    found = device["policies"]
    if found is None:
        return []
    label, name = f"{device['name']}: leaving early", device["name"]
    best = next((row for row in found["subnets"] if row["digest"] == found["best"]), None)
    if best is None:
        reasons = [found["reason"], *(row["reason"] for row in found["subnets"])]
        note = next((reason for reason in reasons if reason is not None), "no SubNet with all exits was chosen")
        return [{"label": label, "value": "–", "note": note, "device": name}]
    tested = best["tested"]
    note = (
        f"{milliseconds(tested['expected_ms'])} on average instead of {milliseconds(tested['whole_ms'])}, p99 "
        f"{milliseconds(tested['p99_ms'])}; {best['lost_points']:.2f} points lost on test images, at most "
        f"{100 * found['epsilon']:g} promised with {percent(found['confidence'])}"
    )
    sign = "−" if tested["saved"] >= 0 else "+"
    return [{"label": label, "value": f"{sign}{percent(abs(tested['saved']))}", "note": note, "device": name}]
