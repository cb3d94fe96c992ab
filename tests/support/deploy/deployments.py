"""Bundles and settings for deployments into a folder of this machine."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_runtime.bundle.bundles import BUNDLE_FILE, BundleManifest, CalibrationSample, FileFacts
from adaptive_runtime.bundle.bundles.bundle import CALIBRATION_FILE
from tailor_ir import SuperNet
from tasks.deploy import Settings
from tasks.deploy.device_side.service import Service
from tests.support.runtime.bundled import write_plain_bundle


def write_bundle(net: SuperNet, folder: Path, *, largest: bool = True) -> BundleManifest:
    """The largest and the smallest SubNet, or the smallest alone, with a calibration sample."""
    configs = [net.max_config, net.min_config] if largest else [net.min_config]
    return write_plain_bundle(net, configs, folder, samples=2)


def expect_other_answers(folder: Path) -> None:
    """Change what a bundle expects, with digests that fit: as if another network had been exported."""
    file = folder / CALIBRATION_FILE
    sample = CalibrationSample.from_bytes(file.read_bytes())
    answers = {key: np.roll(logits_NK, 1, axis=1) for key, logits_NK in sample.answers.items()}
    file.write_bytes(CalibrationSample(sample.inputs, answers).to_bytes())
    manifest = BundleManifest.from_json((folder / BUNDLE_FILE).read_text())
    content = file.read_bytes()
    facts = FileFacts(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    files = {**manifest.files, CALIBRATION_FILE: facts}
    (folder / BUNDLE_FILE).write_text(manifest.model_copy(update={"files": files}).to_json())


def unpacked(folder: Path, wheel: Path, /, **changed: Any) -> Settings:
    """Settings that install the wheel's modules alone, for the libraries of this environment, and start nothing."""
    given = {"folder": str(folder), "wheel": wheel, "install": "unpack", "start": False, "port": 0, **changed}
    return Settings.model_validate(given)


def releases(folder: Path) -> set[str]:
    """The releases that are there."""
    return {path.name for path in (folder / "releases").iterdir()}


def current(folder: Path) -> str | None:
    """The release that the link names."""
    link = folder / "current"
    return link.readlink().name if link.is_symlink() else None


@contextmanager
def stopped_at_the_end(folder: Path) -> Iterator[Service]:
    """The service of a folder, for the block."""
    service = Service(str(folder))
    try:
        yield service
    finally:
        service.stop()
