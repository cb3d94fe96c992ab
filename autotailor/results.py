"""The results of a run: fronts as tables and pictures, files with their cards."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.config import RetargetConfig, RunConfig
from flows.storage import STAGES_FOLDER
from flows.storage.sharing import LIST_FILE
from tasks.base.artifacts import read_json
from tasks.base.errors import UserError
from tasks.base.schemas.exports import LABELLED, Card, ExportIndex, IndexedWinner
from tasks.base.schemas.placed import LUT_FOLDER
from tasks.base.schemas.winners import FRONT_FILE, Front, Winner
from tasks.data.problems import problem_named
from tasks.measuring.lut.table import read

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn

    from tailor_ir import SuperNet

INDEX_FILE = "index.json"
BUNDLE = "bundle"
SUPERNET = "supernet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A finished stage. folder: its artifacts. result: its numbers, as `--json` of the command line has them. cached: it was
    found complete. device: empty for a stage of all devices. score: the name of the score in tables.
    """

    name: str
    device: str
    folder: Path
    result: Mapping[str, Any]
    seconds: float
    cached: bool
    score: str

    @classmethod
    def of(cls, summary: Mapping[str, Any], score: str) -> "Stage":
        """From the result of a command."""
        name, _, device = summary["stage"].partition("/")
        kept = {field: summary[field] for field in ("result", "seconds", "cached")}
        return cls(name=name, device=device, folder=Path(summary["folder"]), score=score, **kept)

    @property
    def supernet(self) -> "SuperNet":
        """The SuperNet of `compile` or `finetune`."""
        import tailor_ir

        return tailor_ir.load(self.folder / SUPERNET)

    @property
    def table(self) -> Any:
        """Times of operators (`profile_operators`), or winners as predicted (`search`), as `Tailored.front` gives its rows."""
        if self.name == "profile":
            return _table(read(self.folder / LUT_FOLDER)[1])
        return _table([self._winner(one) for one in Front.read(self.folder / FRONT_FILE).winners])

    def _winner(self, one: Winner) -> dict[str, Any]:
        row = {"budget_ms": one.budget_ms, "predicted_ms": one.predicted_ms, self.score: one.accuracy}
        return {**row, "macs": one.macs, "parameters": one.parameters, "digest": one.digest}


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """A SubNet of a front. score: on the test samples. path: the file in the device's own format. files: all of them.

    card: all facts about it, the preprocessing of a sample included. bundle: the folder that the run time loads; None if the
    run had no `export.bundle=true`.
    """

    device: str
    budget_ms: float
    measured_ms: float
    score: float
    digest: str
    path: Path
    files: tuple[Path, ...]
    card: Card
    bundle: Path | None
    supernet: Path

    def module(self) -> "nn.Module":
        """The SubNet as an ordinary module of torch in eval mode, with the weights of the exported file."""
        import onnx2torch

        file = next(one for one in self.files if one.suffix == ".onnx")
        found: nn.Module = onnx2torch.convert(file)
        return found.eval()


class Tailored:
    """The result of `tailor`. report: the page with all tables and pictures; None after `export`. output_dir: the folder of
    all runs.
    """

    def __init__(self, config: RunConfig | RetargetConfig, result: Mapping[str, Any]) -> None:
        self._config, self._result = config, result
        self.report = Path(result["report_html"]) if "report_html" in result else None
        self.output_dir = config.folder

    def __repr__(self) -> str:
        place = f"files: {self.output_dir}" if self.report is None else f"report: {self.report}"
        return f"Tailored({self._config.name} for {', '.join(self._config.device)}; {place})"

    def _repr_html_(self) -> str:
        """The table of each device, for notebooks."""
        return "".join(f"<h4>{name}</h4>{_html(self.rows(name))}" for name in self._config.device)

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the devices."""
        return tuple(self._config.device)

    @property
    def headline(self) -> list[str]:
        """The most important numbers, a line each; none without a report."""
        return [f"{card['label']}: {card['value']}, {card['note']}" for card in self._result.get("headline", ())]

    def rows(self, device: str) -> list[dict[str, Any]]:
        """The front of a device: budget and measured latency [ms], speed-up over the largest SubNet, the score on the test
        samples, cost, and the file.
        """
        found, largest_ms = [], self._largest_ms(device)
        for winner in self._winners(device):
            card = Card.read(self._folder(device) / _card_of(winner))
            row = {
                "budget_ms": winner.budget_ms,
                "measured_ms": winner.measured_ms,
                "speed_up": largest_ms / winner.measured_ms if largest_ms and winner.measured_ms else None,
                self.score: winner.accuracy["test"],
            }
            if LABELLED in winner.accuracy:
                row["true score"] = winner.accuracy[LABELLED]
            found.append({**row, "macs": card.macs, "parameters": card.parameters, "file": winner.files[0]})
        return found

    def front(self, device: str) -> Any:
        """The front of a device as a table of pandas; of pyarrow if pandas is not installed."""
        return _table(self.rows(device))

    @property
    def score(self) -> str:
        """The name of the score in tables."""
        return problem_named(self._config.data.problem, self._config.data.metric).score

    def best(self, device: str, budget_ms: float) -> Best:
        """The SubNet with the highest score that keeps a budget [ms] by measurement. UserError: none does."""
        fitting = [one for one in self._winners(device) if (one.measured_ms or float("inf")) <= budget_ms]
        if not fitting:
            least = min((one.measured_ms for one in self._winners(device) if one.measured_ms), default=None)
            allowed = "" if least is None else f"{least:.4g} ms or more"
            raise UserError(
                f"budget {budget_ms:g} ms on '{device}'", "no SubNet of the front keeps it", allowed=allowed
            )
        winner = max(fitting, key=lambda one: (one.accuracy["validation"], -(one.measured_ms or 0)))
        folder, backend = self._folder(device), self._config.device[device].backend
        files = tuple(folder / name for name in winner.files)
        suffix = ".param" if backend.startswith("ncnn") else ".pte" if backend == "executorch" else ".onnx"
        assert winner.measured_ms is not None
        return Best(
            device=device,
            budget_ms=budget_ms,
            measured_ms=winner.measured_ms,
            score=winner.accuracy["test"],
            digest=winner.digest,
            path=next((file for file in files if file.suffix == suffix), files[0]),
            files=files,
            card=Card.read(folder / _card_of(winner)),
            bundle=folder / BUNDLE if (folder / BUNDLE).is_dir() else None,
            supernet=self.supernet,
        )

    @property
    def supernet(self) -> Path:
        """The folder of the trained SuperNet."""
        if isinstance(self._config, RetargetConfig):
            return self._config.supernet
        stages: list[str] = read_json(Path(self._result["run"]) / LIST_FILE)
        trained = next(one for one in stages if one.startswith("finetune/"))
        return self.output_dir / STAGES_FOLDER / trained / SUPERNET

    @property
    def elastic(self) -> "SuperNet":
        """The trained SuperNet: `elastic.elastic` is a module whose SubNet `activate` chooses."""
        import tailor_ir

        return tailor_ir.load(self.supernet)

    def plot(self) -> "Figure":
        """The score over the measured latency of each device's front."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axis = figure.subplots()
        for device in self._config.device:
            points = sorted({(row["measured_ms"], row[self.score]) for row in self.rows(device) if row["measured_ms"]})
            axis.plot(*zip(*points, strict=True), marker="o", label=device)
        axis.set_xlabel("latency, ms (p50)")
        axis.set_ylabel(f"{self.score} on test samples")
        axis.legend()
        return figure

    def _largest_ms(self, device: str) -> float | None:
        """The measured latency of the largest SubNet, from the report or from the result of the export."""
        known = {one["name"]: one["base"]["measured_ms"] for one in self._result.get("devices", ())}
        for one in self._result["stages"] if not known else ():
            known[one["stage"].partition("/")[2]] = one["result"]["largest"]["latency"]["p50_ms"]
        found: float | None = known.get(device)
        return found

    def _folder(self, device: str) -> Path:
        if device not in self._config.device:
            raise UserError("device", f"'{device}'", allowed=", ".join(self._config.device))
        return Path(self._result["exports"][device])

    def _winners(self, device: str) -> tuple[IndexedWinner, ...]:
        return ExportIndex.read(self._folder(device) / INDEX_FILE).winners


def _table(rows: list[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError:
        import pyarrow

        return pyarrow.Table.from_pylist(rows)
    return pandas.DataFrame(rows)


def _card_of(winner: IndexedWinner) -> str:
    """The card is the last JSON file: that of an ncnn file is its settings."""
    return [name for name in winner.files if name.endswith(".json")][-1]


def _html(rows: list[dict[str, Any]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in (rows[0] if rows else ()))
    body = "".join("<tr>" + "".join(f"<td>{_shown(one)}</td>" for one in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
