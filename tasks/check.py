"""Stage "check": a network, a space and limits that cannot work, told before anything is trained or measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tailor_ir
from tailor_ir.memory import Rules
from tasks import compile
from tasks.data import DataSettings
from tasks.models import ModelSettings
from tasks.search.limits import refuse_limits
from tasks.search.settings import Settings as SearchSettings


def network(
    settings: compile.Settings,
    model: ModelSettings,
    data: DataSettings,
    space: Mapping[str, Any] | None,
    search: SearchSettings,
    rules: Mapping[str, Rules],
) -> compile.SpaceSizes:
    """Compile a network with random weights; the sizes of its space. rules: of memory, by device.

    Raises UserError or TailorError for a network or space that cannot be used, UserError for limits that no SubNet keeps.
    """
    net = compile.supernet_of(settings, model, data, None, space)
    refuse_limits(net, search, rules)
    return compile.sizes(net.space)


def supernet(folder: Path, search: SearchSettings, rules: Mapping[str, Rules]) -> compile.SpaceSizes:
    """The sizes of a SuperNet's space. UserError for limits that no SubNet keeps."""
    net = tailor_ir.load(folder)
    refuse_limits(net, search, rules)
    return compile.sizes(net.space)
