"""The record of a night, from its finished stages."""

from collections.abc import Iterator, Mapping, Sequence

import tasks.data
from flows.config import AdaptConfig, FlowConfig
from flows.pipeline.run import Output, Run
from flows.pipeline.stages import PIPELINE
from flows.pipeline.stages.inputs import data_key, model_key
from flows.pipeline.stages.spec import ALONE, Outputs, trained_supernet
from flows.pipeline.versions import library_versions
from profiling_agents.messages import Capabilities
from tasks.base.artifacts import MadeFrom, digest_of
from tasks.base.schemas.accuracy import VALIDATION_FILE as ACCURACY_FILE
from tasks.base.schemas.accuracy import AccuracyValidation
from tasks.base.schemas.latency import VALIDATION_FILE as LATENCY_FILE
from tasks.base.schemas.latency import LatencyValidation
from tasks.operations.nightly import DeviceNight, Night, NightTimes, StageNight
from tasks.operations.nightly.timing import TIMES_FILE

FACTS = (
    "backend",
    "version",
    "build",
    "precision",
    "cpu_model",
    "operating_system",
    "system",
    "governor",
    "frequency_state",
)
"""Properties of a device by which people see changes there."""
NO_INPUTS = ("nightly", "tracking", "output_dir")
"""Sections of the config that no stage reads."""
SPECS = {spec.title or spec.name: spec for spec in PIPELINE}
FinishedStages = Sequence[Output]


def gather(
    run: Run, config: FlowConfig, outputs: Outputs, finished: FinishedStages, watched: Mapping[str, Output], began: str
) -> Night:
    """The record of tonight. finished: all stages except those of `watched`, which timed the devices."""
    sensitivities = AccuracyValidation.read(outputs["sensitivities"][ALONE].folder / ACCURACY_FILE)
    supernet = digest_of(trained_supernet(config, outputs))
    network = supernet if isinstance(config, AdaptConfig) else digest_of(model_key(config.model))
    libraries = {f"library {name}": version for name, version in library_versions().items()}
    return Night(
        began=began,
        network=config.name,
        run=run.folder.name,
        settings={name: value for name, value in config.plain().items() if name not in NO_INPUTS},
        supernet=supernet,
        inputs={"data": digest_of(data_key(config.data)), "network": network, **libraries},
        stages=tuple(_stages(finished, tuple(config.device))),
        devices={name: _device(run, name, outputs, watched[name]) for name in config.device},
        test_images=len(tasks.data.load(config.data, "test")),
        accuracy_errors={row.digest: 100 * abs(row.predicted_accuracy - row.accuracy) for row in sensitivities.rows},
    )


def with_times(night: Night, watched: Mapping[str, Output]) -> Night:
    """The same night with the new times of devices that were timed again."""
    again = {name: night.devices[name].model_copy(update={"times": _times(output)}) for name, output in watched.items()}
    return night.model_copy(update={"devices": {**night.devices, **again}})


def _times(output: Output) -> NightTimes:
    return NightTimes.read(output.folder / TIMES_FILE)


def _device(run: Run, name: str, outputs: Outputs, watched: Output) -> DeviceNight:
    validation = LatencyValidation.read(outputs["latency"][name].folder / LATENCY_FILE)
    held_out = [row for row in validation.subnets if row.used_for == "held out"]
    return DeviceNight(
        fingerprint=run.devices.fingerprint(name),
        facts=_facts(run.devices.capabilities(name)),
        times=_times(watched),
        latency_errors={row.digest: abs(row.predicted_ms - row.measured_ms) / row.measured_ms for row in held_out},
    )


def _facts(device: Capabilities) -> dict[str, str]:
    known = ((name, getattr(device, name)) for name in FACTS)
    return {name: str(value) for name, value in known if value not in (None, "")}


def _stages(finished: FinishedStages, devices: Sequence[str]) -> Iterator[StageNight]:
    titles = [output.stage for output in finished]
    for output in finished:
        name, _, label = output.stage.partition("/")
        spec, made_from = SPECS[name], MadeFrom.of(output.folder)
        needs = (title for need in (*spec.needs, *spec.reads) for title in _read(need, label, titles))
        of_devices = (label,) if label in devices else tuple(devices)
        yield StageNight(
            stage=output.stage,
            key=output.key,
            code=made_from.code if made_from else "",
            needs=tuple(dict.fromkeys(needs)),
            devices=of_devices if spec.agent else (),
            worked=not output.cached,
            seconds=output.seconds,
            settings=made_from.settings if made_from else None,
        )


def _read(need: str, label: str, titles: Sequence[str]) -> list[str]:
    """Titles of an earlier stage that a stage of this label reads: its own, or all."""
    own = f"{need}/{label}"
    return [own] if own in titles else [title for title in titles if title.partition("/")[0] == need]
