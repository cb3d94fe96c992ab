"""`autotailor stress`: serve a bundle while other processes come and go."""

from pathlib import Path
from typing import TYPE_CHECKING

from flows.cli.arguments import Arguments
from flows.cli.terminal import Answer, Terminal, TerminalProgress
from flows.config.validate import nearest
from tasks.base.errors import UserError

if TYPE_CHECKING:
    from flows.config.bundles import StressConfig


def check(arguments: Arguments, config: "StressConfig") -> None:
    """UserError if there is not exactly one device."""
    count = len(arguments.words)
    if count > 1 or (not count and config.stress.bundle is None):
        next_step = "write autotailor stress DEVICE, or stress.bundle=FOLDER"
        raise UserError("stress", f"got {count} devices", allowed="one", next_step=next_step)


def execute(arguments: Arguments, config: "StressConfig") -> Answer:
    """Serve, query and stress the bundle, show its behaviour, and return it as JSON. AdaptiveError: one line."""
    bundle = _bundle(config, next(iter(arguments.words), ""))

    from tasks.deploy.stress import run, stress_tables

    with TerminalProgress() as progress:
        report = run(config.stress, bundle, progress)
    Terminal().show(stress_tables(report))
    return report.to_json()


def _bundle(config: "StressConfig", device: str) -> Path:
    from flows.config.bundles import bundle_of, devices_with_bundles
    from flows.storage.mirror import exports_here

    known = devices_with_bundles(exports_here(config.output_dir, device)) if device else []
    if known and config.stress.bundle is None and device not in known:
        hint = nearest(device, known) or "the run writes it with export.bundle=true"
        raise UserError(
            "stress", f"'{device}' has no bundle in '{config.output_dir}'", allowed=", ".join(known), next_step=hint
        )
    return bundle_of(config.output_dir, device, config.stress.bundle, "stress.bundle")
