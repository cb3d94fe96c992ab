"""The flow from a network to files for every device."""

from typing import Any, Literal

from prefect import flow

from flows import stages
from flows.choosing import config_for
from flows.config import RunConfig
from flows.session import open_run
from flows.tailoring import DeviceStage, tailor
from tasks.choose import Question

StageName = Literal["compile", "finetune"] | DeviceStage
TRAINED = ("finetune", "predict", "search", "export", "report")
WITHOUT_WEIGHTS = ("enumerate", "plan", "profile")  # operators and their latencies depend on shapes alone


@flow(name="autotailor", flow_run_name="{config.name}", persist_result=False)
def pipeline(config: RunConfig, until: StageName = "report", question: Question | None = None) -> dict[str, Any]:
    """Compile, fine-tune, enumerate, profile, predict, search, export, report: up to and including `until`.

    Stages that are complete in the output folder under the same settings, inputs and code are not repeated. Up to
    enumerate, plan or profile nothing is trained: the SuperNet has random weights, or those of the .onnx file. "plan"
    is a dry run of profile: what each device knows already, and how long the rest takes. question: to a search.
    """
    config = config_for(config, question) if question else config
    with open_run(config, until) as run:
        trainable = config.model.kind != "onnx" and until not in WITHOUT_WEIGHTS
        base = stages.base(run, config) if trainable else None
        compiled = stages.compile(run, config, base)
        if until == "compile":
            return run.results(compiled)
        tuned = stages.finetune(run, config, compiled) if until in TRAINED else None
        if until == "finetune":
            assert tuned is not None
            return run.results(tuned)
        supernet = compiled.folder / stages.SUPERNET
        trained = tuned.folder / stages.SUPERNET if tuned else supernet
        training = {output.stage: output.folder for output in (base, tuned) if output}
        return tailor(run, config, supernet, trained, until, training, question)
