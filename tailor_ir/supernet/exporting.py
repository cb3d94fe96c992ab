"""SubNets, their segments and blocks as ONNX files of one folder, with common weights stored once."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import ModelProto

from tailor_ir.spaces.selectors import Choice
from tailor_ir.spaces.stage_kinds import EXIT
from tailor_ir.subnets.batch_norms import Statistics, statistics_names, with_statistics
from tailor_ir.subnets.elastic import Elastic
from tailor_ir.subnets.onnx_export import parts_onnx, subnet_onnx
from tailor_ir.subnets.segments import Part, find_block_parts, find_parts, with_all_answers
from tailor_ir.subnets.shared_weights import CommonWeights, write_together

BLOCKS, STATISTICS = "blocks", "statistics"
"""Parts of file names: prefix of the segments of blocks; suffix of SubNets that report their BatchNorms' inputs."""

WithStatistics = tuple[Mapping[str, Choice], Statistics | None]
"""A config with the BatchNorm statistics of its SubNet; None: the shared ones."""


def export_together(
    elastic: Elastic,
    batch: int,
    subnets: Mapping[str, WithStatistics],
    folder: Path,
    chains: Mapping[str, Sequence[str]],
    blocks: WithStatistics | None,
    observed_images: int | None,
) -> None:
    """Write the files that `SuperNet.export_together` describes."""
    structure, row_of = elastic.structure, elastic.structure.space.row
    rows = {name: row_of(config) for name, (config, _) in subnets.items()}
    ended = {name: row_of({**subnets[name][0], EXIT.name: exits[-1]}) for name, exits in chains.items()}
    parts = [structure.subnet(row, batch) for row in rows.values()]
    parts += [with_all_answers(structure, ended[name], exits, batch) for name, exits in chains.items()]
    ways = () if blocks is None else find_block_parts(structure, row_of(blocks[0]), batch)
    common = CommonWeights(elastic, [*parts, *(way.subnet for way in ways)])
    models = ((name, _whole(elastic, row, subnets[name][1], common, batch)) for name, row in rows.items())
    segments = (
        one
        for name, exits in chains.items()
        for one in _numbered(name, elastic, find_parts(structure, ended[name], exits, batch), subnets[name][1], common)
    )
    own = _numbered(BLOCKS, elastic, ways, None if blocks is None else blocks[1], common)
    if observed_images is None:
        write_together(itertools.chain(models, segments, own), folder)
        return
    observed = (
        (f"{name}.{STATISTICS}", with_statistics(model))
        for name, row in rows.items()
        if statistics_names(model := _whole(elastic, row, subnets[name][1], common, observed_images))
    )
    outside = frozenset(structure.graph.statistics)
    write_together(itertools.chain(models, segments, own, observed), folder, outside)


def _whole(
    elastic: Elastic, row: np.ndarray, statistics: Statistics | None, common: CommonWeights, batch: int
) -> ModelProto:
    """A SubNet whose weights are cut out of the common ones."""
    return subnet_onnx(
        elastic, row, statistics=statistics, fold_batch_norm=False, batch=batch, weights=True, take=common.take
    )


def _numbered(
    name: str, elastic: Elastic, parts: Sequence[Part], statistics: Statistics | None, common: CommonWeights
) -> Iterator[tuple[str, ModelProto]]:
    """Parts by names `NAME.0`, `NAME.1`, …, whose weights are cut out of the common ones."""
    models = parts_onnx(elastic, parts, statistics=statistics, fold_batch_norm=False, weights=True, take=common.take)
    for number, model in enumerate(models):
        yield f"{name}.{number}", model
