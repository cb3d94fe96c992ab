"""The workers of a run; Dask is imported only if there are some."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flows.config.evaluate import EvaluateSettings
from tasks.base.errors import UserError

if TYPE_CHECKING:
    from tasks.evaluation.subnets import EvaluationWorkers


@contextmanager
def evaluation_workers(settings: EvaluateSettings, *, needed: bool) -> Iterator[EvaluationWorkers | None]:
    """The workers of a run; None: this process evaluates SubNets. Processes started here end with the block.

    needed: connect to a scheduler elsewhere now, not at the first evaluation. UserError if there is none, or Dask is missing.
    """
    if settings.workers is None:
        yield None
        return
    try:
        from flows.pipeline.workers.cluster import DaskWorkers
    except ImportError as error:
        raise UserError(
            f"evaluate.workers={settings.workers}", str(error), next_step="in the clone: pip install -e '.[dask]'"
        ) from error
    with DaskWorkers(settings) as workers:
        if needed and settings.scheduler:
            workers.connect()
        yield workers
