"""A bundle as the source of requests: its images, their right answers, and whether a budget fits it.
Legend: N images, C channels, H height, W width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.model.adapting import BundleVariants
from adaptive_runtime.model.deployed.formats import serving_formats
from tasks.base.errors import UserError
from tasks.deploy.stress.settings import Settings


@dataclass(frozen=True, slots=True)
class AskedBundle:
    """images (N, C, H, W): as a service takes them. labels (N,): None: there are none. split: split behind the accuracies.
    accuracies: by digest and exit; exit None: of the whole SubNet.
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64] | None
    accuracies: Mapping[tuple[str, str | None], float]
    split: str

    @classmethod
    def open(cls, folder: Path, settings: Settings) -> "AskedBundle":
        """Read a bundle. AdaptiveError in one line: it is damaged, no budget fits, or it has no images."""
        bundle = OpenBundle.open(folder)
        first = bundle.manifest.subnets[0]
        next_step = "serve it: autotailor-runtime serve, or autotailor deploy"
        if first.taken.inputs is not None:
            raise UserError(f"bundle '{folder}'", "has several inputs; stress asks with images", next_step=next_step)
        if first.taken.words is not None:
            raise UserError(f"bundle '{folder}'", "is of texts; stress asks with images", next_step=next_step)
        if (problem := bundle.manifest.problem) is not None:
            raise UserError(
                f"bundle '{folder}'", f"is for {problem}; stress compares classes of images", next_step=next_step
            )
        left_out: list[str] = []
        found = BundleVariants.of(bundle.manifest, *serving_formats(bundle, settings.format, left_out.append))
        rows = list(zip(found.variants, found.table.accuracy, strict=True))
        _check_budget(found, settings)
        labelled = bundle.source_images()
        return cls(
            images=_sample(bundle) if labelled is None else labelled.normalised(first.of_images),
            labels=None if labelled is None else labelled.labels,
            accuracies={(one.digest, one.exit): accuracy for one, accuracy in reversed(rows) if not one.early},
            split=next(iter(first.accuracy), "test"),
        )

    def requests(self, images: int) -> list[NDArray[np.int64]]:
        """Numbers of the images of each request (M,), M per request; all images are used, some twice if M does not divide N."""
        starts = range(0, len(self.images), images)
        return [np.arange(start, start + images) % len(self.images) for start in starts]

    def accuracy(self, subnet: str, exit: str) -> float:
        """The accuracy of a SubNet that has answered at an exit."""
        return self.accuracies.get((subnet, exit), self.accuracies[subnet, None])


def _sample(bundle: OpenBundle) -> NDArray[np.float32]:
    """The images of the calibration sample in the data's resolution."""
    shape, sample = bundle.manifest.subnets[0].taken.shape, bundle.calibration()
    if sample is None or shape not in sample.inputs:
        got = f"has no images of {'x'.join(map(str, shape))} to ask with"
        raise UserError(f"bundle '{bundle.folder}'", got, next_step="export it with export.adaptable=true")
    return sample.inputs[shape]


def _check_budget(found: BundleVariants, settings: Settings) -> None:
    """Raise UserError if no variant keeps the budget (given, or from the slack) even when nothing else runs."""
    images = settings.images
    latency_ms = [images * one_ms for one_ms in found.table.latency_ms]
    _, most_accurate_ms = max(zip(found.table.accuracy, latency_ms, strict=True), key=lambda row: (row[0], -row[1]))
    if (budget_ms := settings.budget_ms) is None:
        budget_ms = settings.slack * most_accurate_ms
    if budget_ms < (fastest_ms := min(latency_ms)):
        named = "budget_ms" if settings.budget_ms is not None else "slack"
        per = "" if images == 1 else f" for {images} images"
        got = f"no variant keeps {budget_ms:.3g} ms{per}; the fastest takes {fastest_ms:.3g} ms without load"
        allowed = f"{fastest_ms if named == 'budget_ms' else fastest_ms / most_accurate_ms:.3g} and more"
        raise UserError(
            f"stress.{named}", got, allowed=allowed, next_step=f"the most accurate takes {most_accurate_ms:.3g} ms"
        )
