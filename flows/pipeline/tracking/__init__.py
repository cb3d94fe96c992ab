"""MLflow: one run per pipeline run, one nested run per stage, and the description and parameters of a run's page.

Parameters are the values in which runs differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flows.config import FlowConfig
from importing import public_names

if TYPE_CHECKING:
    from flows.pipeline.tracking.tracker import MetricLog, Tracker, start_tracking
else:
    __getattr__ = public_names(__name__, __file__)


COMPARED = (
    "model.name",
    "data.kind",
    "base.epochs",
    "finetune.epochs",
    "finetune.strategy",
    "finetune.learning_rate",
    "search.budgets_ms",
    "search.budget_count",
    "refine.candidates",
    "export.formats",
)
"""Settings by which runs are compared, including those at their defaults."""
OF_DEVICES = ("backend", "threads", "precision", "batch")
"""Device settings by which runs are compared."""
HEADLINE = ("speed-up", "budgets kept")
"""Cards of a report that the description includes for each device."""


def parameters(config: FlowConfig) -> dict[str, str]:
    """Settings that differ from their defaults, and settings by which runs are compared, by dotted name.

    All other settings are in the config, which is an artifact.
    """
    whole = dict(flatten(config.model_dump(mode="json")))
    compared = (*COMPARED, *(f"device.{name}.{field}" for name in config.device for field in OF_DEVICES))
    return {
        **{name: whole[name] for name in compared if name in whole},
        **dict(flatten(config.model_dump(mode="json", exclude_defaults=True))),
    }


def description(config: FlowConfig, until: str) -> str:
    """A few lines of Markdown: the network, the command, and each device with its budgets."""
    lines = [f"**{config.name}**, up to `{until}`, in `{config.folder.resolve()}`", ""]
    for name, profile in config.device.items():
        threads = f"{profile.threads} thread{'s' if profile.threads > 1 else ''}"
        place = ", ".join(profile.urls) or (profile.ssh.host if profile.ssh is not None else "this machine")
        budgets_ms = config.search.budgets_of(name)
        if budgets_ms is None:
            budgets = f"{config.search.budget_count} budgets between its fastest SubNet and its best"
        else:
            budgets = f"budgets {', '.join(f'{budget:g}' for budget in budgets_ms)} ms"
        lines.append(f"- {name}: {profile.backend} on {place}, {profile.precision}, {threads}, {budgets}")
    return "\n".join(lines)


def headline_lines(report: Mapping[str, Any]) -> list[str]:
    """The most important cards of a report: the network's accuracy, and the gain on each device."""
    first, *others = report["headline"]
    own = [card for card in others if card["label"].removeprefix(f"{card['device']}: ") in HEADLINE]
    return [f"- {card['label']}: {card['value']} ({card['note']})" for card in (first, *own)]


def models_lines(models: Mapping[str, Sequence[str]]) -> list[str]:
    """A line for each device whose winners are MLflow models, with the call that loads the first one.

    models: their addresses by device, from the tightest budget to the widest.
    """
    return [
        f'- {device}: `mlflow.onnx.load_model("{addresses[0]}")`, one of {len(addresses)} winners'
        for device, addresses in models.items()
    ]


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted name and text of every leaf."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{name}.")
        else:
            yield name, str(value)
