"""The flow from a network to files for every device."""

from typing import Any

from prefect import flow

from flows.config import RunConfig, RunStage
from flows.pipeline.stages import PIPELINE
from flows.pipeline.tailoring import tailor
from tasks.search.choose import Question


@flow(name="autotailor", flow_run_name="{config.name}", persist_result=False)
def pipeline(config: RunConfig, until: RunStage = "report", question: Question | None = None) -> dict[str, Any]:
    """Compile, fine-tune, enumerate, profile, predict, search, export, report: up to and including `until`.

    Stages that are complete in the output folder under the same settings, inputs and code are not repeated. Up to enumerate,
    plan or profile, nothing is trained: the SuperNet has random weights, or those of the .onnx file. "plan" is a dry run of
    profile: the operators that each device knows already, and the time for the rest. question: to a search.
    """
    return tailor(PIPELINE, config.answering(question), until, question)
