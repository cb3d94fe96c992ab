"""Evaluation in a fresh process: a batch is plain data that names a SuperNet's folder, images and SubNets.

A process reuses loaded data for later batches. Batches of one process are evaluated one after the other.
"""

import threading
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

import tailor_ir
from tailor_ir import Config, SuperNet
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError
from tasks.base.schemas.stored import Record
from tasks.data import Dataset, DataSettings, Split, load_splits
from tasks.evaluation.subnets import Accuracy, EvaluationData, EvaluationResources, OtherPrecision, evaluate_together
from tasks.evaluation.subnets.images import EvaluationRecipe

KEPT = 2
"""SuperNets that a process keeps, and as many sets of images."""
_ONE_BATCH = threading.Lock()


class EvaluationBatch(Record):
    """SubNets of one resolution that are evaluated together: codes by digest.

    supernet: a folder that this process can read; `supernet_digest` is the digest of its content. threads: of torch.
    """

    supernet: Path
    supernet_digest: str
    images: EvaluationRecipe
    subnets: dict[str, tuple[int, ...]]
    threads: int


def evaluate_batch(batch: EvaluationBatch, precision: OtherPrecision | None = None) -> dict[str, Accuracy]:
    """Accuracy of each SubNet by digest. precision: None is torch's.

    UserError: the SuperNet or the images do not exist, or differ from the intended ones.
    """
    with _ONE_BATCH:
        torch.set_num_threads(batch.threads)
        net, images = _supernet(batch.supernet, batch.supernet_digest, batch.images.device), _images(batch.images)
        configs: list[Config] = [net.space.decode(np.array(code)) for code in batch.subnets.values()]
        assert [net.space.digest(config) for config in configs] == list(batch.subnets), "codes are of these SubNets"
        found = evaluate_together(net, configs, images.in_precision(precision))
        return dict(zip(batch.subnets, found, strict=True))


@lru_cache(KEPT)
def _supernet(folder: Path, digest: str, device: str) -> SuperNet:
    where = f"SuperNet '{folder}'"
    if not folder.is_dir():
        raise UserError(where, "is not there", next_step="workers need the output folder under the same path")
    if (found := digest_of(folder)) != digest:
        raise UserError(where, f"has another content: digest {found}", allowed=digest)
    net = tailor_ir.load(folder)
    net.elastic.to(_device(device))
    return net


def _images(recipe: EvaluationRecipe) -> EvaluationData:
    """The images; different splits share the cached BatchNorm statistics."""
    splits = _splits(recipe.data.model_dump_json(), recipe.files)
    found = tuple(splits[name].fingerprint for name in (recipe.split, "train"))
    if found != recipe.fingerprint:
        raise UserError(
            f"data '{recipe.data.path or recipe.data.title}'",
            "other samples or labels than those of the run",
            next_step="workers need the same files under the same path",
        )
    alike = recipe.model_copy(update={"split": "validation", "fingerprint": ("", "")})
    return _evaluation(alike.model_dump_json()).of(splits[recipe.split])


@lru_cache(KEPT)
def _splits(settings: str, files: str) -> dict[Split, Dataset]:
    """The splits. files: a digest of their listing; if it changes, data are loaded anew."""
    return load_splits(DataSettings.model_validate_json(settings))


@lru_cache(KEPT)
def _evaluation(recipe: str) -> EvaluationData:
    """The evaluation of a recipe, given as JSON, on the validation images."""
    given = EvaluationRecipe.model_validate_json(recipe)
    splits = _splits(given.data.model_dump_json(), given.files)
    return EvaluationData(
        splits["validation"],
        splits["train"],
        limit=given.limit,
        recalibration_images=given.recalibration_images,
        batch_size=given.batch_size,
        resources=EvaluationResources(device=_device(given.device), features_mib=given.features_mib),
    )


def _device(kind: str) -> torch.device:
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "evaluation on a GPU", "this process has none", next_step="evaluate.workers where the run has none, too"
        )
    return torch.device(kind)
