"""Options that not every learning problem can do yet, refused before anything is worked."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel

from tailor_ir import asks_for_exits
from tasks.data import DataSettings
from tasks.data.problems import other_metric, problem_named
from tasks.data.samples import lacks_of


class Asking(NamedTuple):
    """An option, and whether a config asks by it for an ability of `tasks.data.problems.require`.

    allowed: what the option may be without the ability.
    """

    ability: str
    option: str
    allowed: str
    asked: Callable[[Any], bool]


def _has_backend(backend: str, config: Any) -> bool:
    return any(profile.backend == backend for profile in config.device.values())


def _has_format(form: str, config: Any) -> bool:
    return form in config.export.formats


def _codes(search: Any) -> bool:
    """Whether a joint search weighs what codings lose."""
    return bool(search.placement) and len(search.partition.ascending) > 1


ASKING = (
    Asking("timm", "baselines.siblings", "[]", lambda config: bool(config.baselines.siblings)),
    Asking("backbone", "model.backbone", "null", lambda config: config.model.backbone is not None),
    Asking("mixing", "base.mixing", "mixup_alpha and cutmix_alpha 0", lambda config: config.base.mixing.is_on),
    Asking("mixing", "finetune.mixing", "mixup_alpha and cutmix_alpha 0", lambda config: config.finetune.mixing.is_on),
    Asking("exits", "space.exits", "a space without exits", lambda config: asks_for_exits(config.space)),
    Asking("streams", "stream.in_report", "false", lambda config: config.stream.in_report),
    Asking("adaptable", "export.adaptable", "false", lambda config: config.export.adaptable),
    Asking("blocks", "export.blocks", "false", lambda config: config.export.blocks),
    Asking("placed", "export.placed", "false", lambda config: config.export.placed),
    Asking("planned_memory", "export.planned_memory", "false", lambda config: config.export.planned_memory),
    Asking("placement", "search.placement", "[]", lambda config: bool(config.search.placement)),
    Asking("placement", "partition.devices", "[], and no links", lambda config: config.partition.asked),
    Asking("executorch", "export.formats", "all but executorch", lambda config: "executorch" in config.export.formats),
    Asking("codings", "search.partition.codings", "[fp32]", lambda config: _codes(config.search)),
    *(
        Asking(one, f"device with backend={one}", "onnxruntime, openvino, torch", partial(_has_backend, one))
        for one in ("ncnn", "executorch")
    ),
    *(
        Asking(runtime, f"export.formats with {form}", "onnx, onnx_int8, torch", partial(_has_format, form))
        for form, runtime in (("ncnn", "ncnn"), ("ncnn_fp16", "ncnn"), ("executorch", "executorch"))
    ),
)
CALLED = {"image": "", "text": " of texts", "sample": " of several inputs"}
"""Learning problems by what a sample is called."""


def check_abilities(config: BaseModel, data: DataSettings) -> None:
    """ValueError for an option that needs an ability which the problem of the data, or their form of samples, lacks."""
    record = problem_named(data.problem, data.metric)
    judged = "" if other_metric(record) is None else f" by {record.score}"
    problem = data.problem + CALLED[data.sample] + judged
    lacks = {**record.lacks, **lacks_of(data)}
    for ability, option, allowed, asked in ASKING:
        section = re.split(r"\W", option)[0]
        if ability in lacks and section in type(config).model_fields and asked(config):
            raise ValueError(
                f"{option} with data.kind={data.kind}: {problem} cannot do it yet: {lacks[ability]}; allowed: {allowed}"
            )
