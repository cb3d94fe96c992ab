"""The models of SubNets that are timed when winners are exported, by name."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from profiling_agents.messages import Measurement
from tailor_ir import Config
from tasks.base.schemas.exports import Latency, MeasuredLargest
from tasks.base.schemas.operators import OWN_CHOICES
from tasks.evaluation.conversion import onnx_of
from tasks.export.files import Maker
from tasks.measuring.subnets import Subject, implementations_of

LARGEST = "largest"
OWN_CHOICES_OF = "by the runtime's own choices"
IN_FP32 = "in fp32"
AS_EXPORTED = "as exported"
ALIGNED = "with aligned images"
Timed = tuple[Measurement, Measurement | None]
"""A SubNet with its chosen implementations, and with the runtime's own choices if these differ."""


def subjects_of(maker: Maker, configs: Mapping[str, Config]) -> dict[str, Subject]:
    """The largest SubNet and some others (by digest), by name."""
    if maker.in_int8:
        return _quantised(maker, configs)
    return _subjects(maker, configs)


def _subjects(maker: Maker, configs: Mapping[str, Config]) -> dict[str, Subject]:
    """Each SubNet; also one without chosen implementations, if it has such; with aligned images if its files align them."""
    net, named = maker.net, {LARGEST: maker.net.max_config, **configs}
    subjects = {name: Subject(net.space.digest(config), net, config) for name, config in named.items()}
    for name in configs.keys() & maker.adapted.keys():
        if aligning := maker.adapted[name].aligning:
            subjects[name] = replace(subjects[name], key=f"{name} {ALIGNED}", statistics=aligning)
    own = [name for name, config in named.items() if implementations_of(net, config, maker.implementations)]
    keys = {f"{name} {OWN_CHOICES_OF}": subjects[name] for name in own}
    return subjects | {key: replace(one, key=key, implementations=OWN_CHOICES) for key, one in keys.items()}


def _quantised(maker: Maker, configs: Mapping[str, Config]) -> dict[str, Subject]:
    """The others by their exported files, some layers of which may be in fp32; the largest also in fp32."""
    net, exact = maker.net, f"{LARGEST} {IN_FP32}"
    largest = Subject(net.space.digest(net.max_config), net, net.max_config)

    def file(config: Config) -> Callable[[], bytes]:
        return lambda: maker.quantised(config).content

    return {
        LARGEST: largest,
        exact: replace(largest, key=exact, content=lambda: onnx_of(net, net.max_config, weights=False)),
        **{
            name: Subject(f"{name} {AS_EXPORTED}", net, config, content=file(config))
            for name, config in configs.items()
        },
    }


def timed(measured: Mapping[str, Measurement], digest: str) -> Timed:
    """The measurements of one SubNet."""
    return measured[digest], measured.get(f"{digest} {OWN_CHOICES_OF}")


def largest_of(measured: Mapping[str, Measurement]) -> MeasuredLargest:
    """The measurement of the largest SubNet beside the others."""
    fields = {"own_choices": OWN_CHOICES_OF, "fp32": IN_FP32}
    others = {field: measured.get(f"{LARGEST} {name}") for field, name in fields.items()}
    return MeasuredLargest(
        latency=latency_of(measured[LARGEST]),
        **{field: latency_of(one) for field, one in others.items() if one is not None},
    )


def latency_of(measured: Measurement) -> Latency:
    """A measurement without its key."""
    return Latency.model_validate(measured.model_dump(exclude={"key"}))
