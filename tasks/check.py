"""Stage "check": a network, a space and limits that cannot work, told before anything is trained or measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tailor_ir
from tailor_ir.memory import Rules
from tasks import compile
from tasks.data import DataSettings
from tasks.models import ModelSettings
from tasks.pretraining.elastic import cut_out
from tasks.pretraining.settings import Settings as PretrainingSettings
from tasks.search.limits import refuse_limits
from tasks.search.settings import Settings as SearchSettings


def network(
    settings: compile.Settings,
    model: ModelSettings,
    data: DataSettings,
    space: Mapping[str, Any] | None,
    search: SearchSettings,
    rules: Mapping[str, Rules],
    first: PretrainingSettings,
    backbone_space: Mapping[str, Any] | None,
) -> compile.SpaceSizes:
    """Compile a network with random weights; the sizes of its space. rules: of memory, by device.

    first: the first stage of two, which may be none; backbone_space: of the backbone by itself.
    Raises UserError or TailorError for a network or space that cannot be used, and for a backbone that does not fit into the
    network; UserError for limits that no SubNet keeps.
    """
    net = compile.supernet_of(settings, model, data, None, space)
    if first.backbone is not None:
        cut_out(first, settings, model, backbone_space, net)
    refuse_limits(net, search, rules)
    return compile.sizes(net.space)


def supernet(folder: Path, search: SearchSettings, rules: Mapping[str, Rules]) -> compile.SpaceSizes:
    """The sizes of a SuperNet's space. UserError for limits that no SubNet keeps."""
    net = tailor_ir.load(folder)
    refuse_limits(net, search, rules)
    return compile.sizes(net.space)
