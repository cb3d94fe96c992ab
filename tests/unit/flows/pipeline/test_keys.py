"""Which stages work again when a setting changes, by their keys; as docs/resuming.md says it."""

from pathlib import Path
from typing import Any, cast

import pytest

from flows.config import RunConfig
from flows.pipeline.run import Output, Run
from flows.pipeline.stages import PIPELINE
from flows.pipeline.stages.spec import Context, data_key
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError
from tasks.data.settings import DataSettings

EVERY_STAGE = {
    "device": {"onnxruntime": {"backend": "onnxruntime"}},
    "space": {"exits": "auto"},
    "refine": {"candidates": 4},
    "baselines": {"uniform": True, "siblings": ["resnet10t"]},
    "stream": {"in_report": True, "subnets": ["largest"]},
}
FOLDER = Path("stages")


def _settings(path: str = "data.seed", value: float | str = 0) -> dict[str, Any]:
    """What counts in the key of each stage besides its inputs, with one setting of the config."""
    plain = RunConfig.model_validate(EVERY_STAGE).model_dump(mode="json")
    *above, name = path.split(".")
    place = plain
    for part in above:
        place = place[part]
    assert name in place
    place[name] = value
    config = RunConfig.model_validate(plain)
    output = Output(stage="x", key="k", folder=FOLDER, result={}, seconds=0.0, cached=False)
    outputs = {spec.name: dict.fromkeys(spec.scope.labels(config), output) for spec in PIPELINE}
    rows = [spec for spec in PIPELINE if spec.wanted(config, "report") and outputs[spec.name]]
    no_run = cast("Run", None)  # settings are read from the config alone
    contexts = {
        spec.name: (spec, Context(no_run, config, spec, next(iter(outputs[spec.name])), outputs)) for spec in rows
    }
    return {name: spec.settings(context) for name, (spec, context) in contexts.items()}


@pytest.mark.parametrize(
    ("path", "value", "stages"),
    [
        ("finetune.learning_rate", 0.1, {"finetune"}),
        ("finetune.checkpoint_every_s", 1, set()),
        ("base.restarts", 3, set()),
        ("baselines.random", 7, {"baselines"}),
        ("runtime_options.rounds", 7, {"runtime_options"}),
        ("profile.method", "alone", {"runtime_options", "profile", "compared"}),
        ("profile.measure.time_cap_ms", 7, {"profile", "compared"}),
        ("profile.subnets_per_operator", 7, {"profile", "compared"}),
        ("profile.flush_s", 7, set()),
        ("profile.store", "elsewhere", set()),
        ("profile.conversion_wall_s", 7, set()),
        ("predict.random_subnets", 7, {"sensitivities", "latency"}),
        ("predict.seed", 7, {"sensitivities", "latency"}),
        ("predict.interactions", 7, {"sensitivities"}),
        ("predict.fit_subnets", 5, {"latency"}),
        ("predict.validation_images", 7, {"sensitivities", "refine", "exits", "baselines"}),
        ("predict.recalibration_images", 7, {"sensitivities", "refine", "stream", "exits", "baselines", "export"}),
        ("search.population", 50, {"search", "baselines"}),
        ("exits.epsilon", 0.1, {"exits"}),
        ("exits.pictures", 7, {"exits"}),
        ("runtime.rules", "latency first", set()),
        ("predict.features_mib", 7, set()),
        ("predict.measure.time_cap_ms", 7, {"latency", "refine", "exits", "compared"}),
        ("predict.rounds", 7, {"latency", "refine", "exits", "compared"}),
        ("predict.conversion_wall_s", 7, {"latency", "refine", "exits", "compared"}),
        ("drift.severity", 3, {"stream"}),
        ("adaptation.guard.quiet_images", 7, {"stream"}),
        ("stream.window_images", 7, {"stream"}),
        ("export.check_images", 7, {"export"}),
        ("export.conversion_wall_s", 7, {"export"}),
    ],
)
def test_a_setting_is_in_the_keys_of_the_stages_whose_result_it_changes(
    path: str, value: float | str, stages: set[str]
) -> None:
    before, after = _settings(), _settings(path, value)
    assert before.keys() == after.keys() >= stages
    assert {name for name, settings in after.items() if settings != before[name]} == stages


def test_a_link_to_nothing_among_data_is_one_line_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"an image")
    settings = DataSettings.model_validate({"kind": "imagefolder", "path": tmp_path})
    key = data_key(settings)
    (tmp_path / "cat" / "2.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(UserError, match=r"data file '.*cat/2\.png': is a link to nothing; mend or remove it"):
        data_key(settings)
    (tmp_path / "gone.png").write_bytes(b"an image")
    assert data_key(settings) != key


def test_the_order_of_inputs_counts(tmp_path: Path) -> None:
    one, other = (
        DataSettings.model_validate({"kind": "table", "path": tmp_path, "inputs": dict.fromkeys(names, "image")})
        for names in (("left", "right"), ("right", "left"))
    )
    assert digest_of(data_key(one)) != digest_of(data_key(other))
