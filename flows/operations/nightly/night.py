"""One night: the run, its devices timed anew, the comparison with the night before, the report and the promotion.

In MLflow's model registry, a night's models are the candidates; a night without regressions becomes the champion. The
state of the flow shows whether something regressed, so that an automation can wait for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from prefect import State, flow, get_run_logger
from prefect.states import Failed

from flows.config import FlowConfig, RunConfig
from flows.operations.nightly import line_of, publish_night, tell, webhook_of
from flows.operations.nightly.record import (
    WATCH,
    WATCH_AGAIN,
    changed_inputs,
    changed_stages,
    gather,
    table_differences,
    with_times,
)
from flows.pipeline.run import Run
from flows.pipeline.stages import table_of
from flows.pipeline.stages.spec import Outputs, trained_supernet
from flows.pipeline.stages.walk import work
from flows.pipeline.tailoring import tailor
from flows.storage import NIGHTS_FOLDER
from flows.storage.mirror import mirror_of
from tasks.base.artifacts import digest_of, write_bytes
from tasks.export.bundles import BUNDLE_FOLDER
from tasks.operations.nightly.comparison import NightComparison, compare
from tasks.operations.nightly.page import PAGE_FILE, NightReport, render
from tasks.operations.nightly.records import History, Night

CANDIDATE, CHAMPION = "candidate", "champion"
"""Aliases in the registry."""
RegisteredModel = tuple[str, str]
"""Name of a registered model, and the digest of its version."""


def propose(run: Run, config: FlowConfig, outputs: Outputs) -> list[RegisteredModel]:
    """Register the night's models as candidates of their names: the SuperNet, and the bundle of each device.

    A given SuperNet is not registered, since the night has not made it.
    """
    models = list(_bundles(run, config, outputs))
    if isinstance(config, RunConfig):
        models.insert(0, (f"autotailor-{config.name}", digest_of(trained_supernet(config, outputs))))
    for name, digest in models:
        run.tracker.point(name, digest, CANDIDATE)
    return models


def _bundles(run: Run, config: FlowConfig, outputs: Outputs) -> Iterator[RegisteredModel]:
    for device in config.device:
        folder: Path = outputs["export"][device].folder
        if (folder / BUNDLE_FOLDER).is_dir():
            name, tracker = f"autotailor-{config.name}-{device}", run.tracker
            stage = tracker.start_stage(f"bundle/{device}", digest := digest_of(folder / BUNDLE_FOLDER))
            tracker.log_artifact(stage, folder, BUNDLE_FOLDER)
            tracker.register(name, stage, BUNDLE_FOLDER, digest, "Bundle: adaptive_runtime.load(folder) opens it")
            tracker.finish(stage)
            yield name, digest


TIMED = ("operator", "SubNet", "front")
"""Kinds of findings that rest on the night's latencies."""


def work_night(config: FlowConfig) -> dict[str, Any]:
    """Work a night, inside a flow run. The result is that of a run, plus `nightly` and `regressed`.

    Several workers may work on one night: one of them concludes it, and the others return its findings.
    """
    webhook, began = webhook_of(config), datetime.now(UTC).isoformat(timespec="microseconds")
    history = History(config.folder / NIGHTS_FOLDER)
    mirror = mirror_of(config.output_dir)
    if mirror is not None:
        mirror.nights.fetch()
    known = history.names()

    def conclude(run: Run, outputs: Outputs) -> dict[str, Any]:
        """Workers with lock servers already come here one at a time; workers at a URL use the URL's own lock."""
        shared = run.mirror
        turn: AbstractContextManager[object] = (
            shared.locks.held(NIGHTS_FOLDER, get_run_logger().info) if shared else nullcontext()
        )
        with turn:
            if shared is not None:
                shared.nights.fetch()
            if (described := concluded(config, run.key, history, known)) is not None:
                get_run_logger().info("another worker has concluded this night: %s", described["nightly"]["line"])
                return described
            return _Tonight(run, config, outputs, history, began).conclude(webhook)

    return tailor(table_of(config), config, "report", conclude=conclude)


def concluded(config: FlowConfig, run: str, history: History, known: set[str]) -> dict[str, Any] | None:
    """The findings of another worker of a run (its key) since this one began; None without one. known: earlier records."""
    new = [night for night in history.nights(config.name, lambda line: None) if history.file(night).name not in known]
    night = next((one for one in reversed(new) if one.run == run), None)
    if night is None:
        return None
    page = config.folder / PAGE_FILE
    return _answer(night, line_of(night, page.resolve()), page, history.file(night))


def _answer(night: Night, line: str, page: Path, record: Path, report: NightReport | None = None) -> dict[str, Any]:
    """The result of a night as JSON. report: of the worker that has concluded it."""
    findings = [finding.to_json() for finding in night.findings]
    return {
        "nightly": {
            "line": line,
            "page": str(page),
            "record": str(record),
            "promoted": night.promoted,
            "changed": list(report.changed) if report else [],
            "stages": [change._asdict() for change in report.stages] if report else [],
            "findings": findings,
        },
        "regressed": bool(findings),
    }


@dataclass(frozen=True, slots=True)
class _Tonight:
    """A night whose stages are finished."""

    run: Run
    config: FlowConfig
    outputs: Outputs
    history: History
    began: str

    def conclude(self, webhook: str | None) -> dict[str, Any]:
        """Time, compare, show, report, promote. The record comes last: a night that is killed before it does not count."""
        settings, page = self.config.nightly, self.config.folder / PAGE_FILE
        earlier = self.history.nights(self.config.name, get_run_logger().warning)
        before = earlier[-1] if earlier else None
        night, comparison = self._compared(earlier, before)
        worse = self._worse_than_champion(earlier, night, comparison)
        promoted = settings.promote == "always" or (settings.promote == "unless regressed" and not worse)
        since = before.began if before else None
        described = {"compared_with": since, "findings": comparison.findings, "promoted": promoted}
        night = night.model_copy(update=described)
        report = NightReport(
            night=night,
            comparison=comparison,
            changed=changed_inputs(before, night) if before else (),
            stages=changed_stages(before, night) if before else (),
            tables=table_differences(before, night, self.run) if before else {},
        )
        write_bytes(page, render([*earlier, night], report).encode())
        tracker, is_worse = self.run.tracker, str(bool(night.findings)).lower()
        tracker.client.log_artifact(tracker.run_id, str(page))
        tracker.tag(tracker.run_id, {"autotailor.night": night.began, "autotailor.regressed": is_worse})
        models = propose(self.run, self.config, self.outputs)
        line = line_of(night, page.resolve())
        publish_night(report, line, page)
        if night.findings:
            tell(self.config, night, page.resolve(), webhook)
        else:
            get_run_logger().info(line)
        for name, digest in models if promoted else ():
            self.run.tracker.point(name, digest, CHAMPION)
        record = self.history.add(night)
        if self.run.mirror is not None:
            self.run.mirror.publish_results([], [PAGE_FILE])
            self.run.mirror.nights.publish()
        return _answer(night, line, page, record, report)

    def _compared(self, earlier: Sequence[Night], before: Night | None) -> tuple[Night, NightComparison]:
        """Compare tonight with the night before. Slower devices are timed once more: only findings confirmed then count."""
        finished = list(self.run.outputs)
        watched = work(WATCH, self.run, self.config, self.outputs)
        night = gather(self.run, self.config, self.outputs, finished, watched, self.began)
        first = compare(self.config.nightly, earlier, before, night)
        suspects = list(dict.fromkeys(one.device for one in first.findings if one.kind in TIMED))
        if not suspects:
            return night, first
        get_run_logger().info(f"latencies on {', '.join(suspects)} are worse than the night before: timed once more")
        again = with_times(night, work(WATCH_AGAIN, self.run, self.config, self.outputs, suspects))
        second = compare(self.config.nightly, earlier, before, again)
        places = {finding.place for finding in first.findings}
        confirmed = tuple(finding for finding in second.findings if finding.place in places)
        return again, replace(second, findings=confirmed)

    def _worse_than_champion(self, earlier: Sequence[Night], night: Night, comparison: NightComparison) -> bool:
        champion = next((one for one in reversed(earlier) if one.promoted), None)
        if champion is None or champion is earlier[-1]:
            return bool(comparison.findings)
        return bool(compare(self.config.nightly, earlier, champion, night).findings)


REGRESSED = "Regressed"
"""Name of the flow run's state, and thereby of Prefect's event `prefect.flow-run.Regressed`."""


@flow(name="autotailor-nightly", flow_run_name="{config.name}", persist_result=False)
def nightly(config: FlowConfig) -> Any:
    """A run, compared with the night before: changes, regressions, trends. Ends as Regressed if something regressed."""
    result = work_night(config)
    return regressed(result, data=result) if result["regressed"] else result


def regressed(result: Mapping[str, Any], data: Mapping[str, Any] | None = None) -> State[Any]:
    """The failed state, with its own name, of a night on which something regressed. data: the flow's result."""
    return Failed(name=REGRESSED, message=result["nightly"]["line"], data=data)


def night_of(config: FlowConfig) -> dict[str, Any]:
    """Run the flow and return its result, whether or not something regressed. The exception of a failed night is raised."""
    state = cast(State[dict[str, Any]], nightly(config, return_state=True))
    return cast(dict[str, Any], state.result(raise_on_failure=state.name != REGRESSED))
