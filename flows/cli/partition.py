"""`autotailor partition`: split a SubNet over several devices."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, model_validator
from rich.markup import escape
from rich.table import Column, Table

from flows.cli.arguments import Arguments
from flows.cli.terminal import Answer, Terminal
from flows.storage import OutputPlace, local_folder
from tasks.base.errors import UserError
from tasks.placement.partition.settings import MOST_DEVICES, PartitionSettings
from tasks.search.choose import FILE_END

if TYPE_CHECKING:
    from tasks.placement.partition import PartitionAnswer

PAGE_FILE = "partition.html"
KIB = 1024
NCNN = "ncnn"
ENDS = ("largest", "smallest")


class PartitionConfig(BaseModel):
    """The run that has measured the devices, the SubNet, and the settings of its split."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    output_dir: OutputPlace = Path("outputs")
    supernet: Path | None = None
    subnet: str = "largest"
    partition: PartitionSettings

    @model_validator(mode="after")
    def _names_devices(self) -> Self:
        if not self.partition.asked:
            raise ValueError(
                f"partition.devices: got []; allowed: two to {MOST_DEVICES} different names, the coordinator first"
            )
        return self


def check(arguments: Arguments, config: PartitionConfig) -> None:
    """UserError for the name of a SubNet that there is not."""
    if config.subnet not in ENDS and not config.subnet.endswith(FILE_END):
        allowed = f"{', '.join(ENDS)}, or a file of search: FILE{FILE_END}"
        raise UserError("subnet", f"got '{config.subnet}'", allowed=allowed)


def execute(arguments: Arguments, config: PartitionConfig) -> Answer:
    """Plan, show cuts and plans, write page and segments, and return all as JSON. UserError, TailorError for bad input."""
    import tailor_ir
    from tasks.base.artifacts import write_bytes
    from tasks.base.schemas.placed import ChosenSubNet
    from tasks.placement.partition import (
        ChainOptions,
        find_supernet,
        open_tables,
        plan_partition,
        write_parts,
        write_plans,
    )
    from tasks.report.partition import render

    settings, terminal = config.partition, Terminal()
    output = _output_here(config)
    tables = open_tables(output, settings.devices)
    net = tailor_ir.load(config.supernet or find_supernet(output))
    if config.subnet.endswith(FILE_END):
        subnet: Mapping[str, Any] = ChosenSubNet.read(Path(config.subnet)).subnet.config
    else:
        subnet = net.max_config if config.subnet == ENDS[0] else net.min_config
    answer = plan_partition(net, subnet, tables, settings)
    _show(answer, terminal)
    page = settings.page or output / PAGE_FILE
    try:
        write_bytes(page, render(answer).encode())
    except OSError as error:
        raise UserError("partition.page", f"'{page}' cannot be written ({error.strerror})") from error
    terminal.say(f"page: {page}")
    ncnn = settings.ncnn or any(table.lut.device.backend == NCNN for table in tables)
    options = ChainOptions(threads=tables[0].lut.device.threads, ncnn=ncnn)
    if settings.parts is not None:
        segments = answer.plans[0].stays
        found = write_parts(net, answer.config, segments, settings.devices[0], settings.parts, options)
        terminal.say(f"{len(found.parts)} segments: {settings.parts}, {found.difference:.1e} from the whole SubNet")
    if settings.plans is not None:
        plans = write_plans(net, answer.config, tables, settings, settings.plans, options)
        terminal.say(f"{len(plans.plans)} plans for {len(plans.coordinator_ms)} segments: {settings.plans}")
    return answer.to_json()


def _output_here(config: PartitionConfig) -> Path:
    """The local output folder with the stages to read; for a URL, they are fetched first."""
    from flows.storage.mirror import mirror_of
    from tasks.placement.partition import stages_of

    if mirror := mirror_of(config.output_dir):
        for stage in stages_of(config.partition.devices):
            mirror.fetch_latest(stage)
    return local_folder(config.output_dir)


def _show(answer: "PartitionAnswer", terminal: Terminal) -> None:
    def right(*names: str) -> list[Column]:
        return [Column(name, justify="right") for name in names]

    times_of = right(*(f"{escape(name)} ms" for name in answer.devices))
    headers: list[Column | str] = [*right("cut", "KiB", "values"), "operator behind it", *times_of]
    cuts = Table(*headers, title=f"cuts of SubNet {answer.network}", title_justify="left")
    for cut in answer.cuts:
        last = cut.cut == len(answer.operators)
        own = None if last else answer.operators[cut.cut]
        times = ["" if own is None else f"{own.compute_ms[name]:.4g}" for name in answer.devices]
        what = "the answer" if own is None else f"{own.title} ({own.place})"
        cuts.add_row(str(cut.cut), f"{cut.bytes / KIB:.4g}", str(len(cut.values)), escape(what), *times)
    others_of, throughput = list(answer.plans[0].others_ms), answer.objective == "throughput"
    headers = [*right("Mbit/s", "ms", "KiB sent"), "operators on devices", *["ms between answers"] * throughput]
    plans = Table(*headers, *right(*(f"{name}, ms" for name in others_of)), title="plans", title_justify="left")
    for plan in answer.plans:
        period = [] if plan.period_ms is None else [f"{plan.period_ms:.4g} ({plan.bottleneck})"]
        others_ms = [plan.others_ms.get(name) for name in others_of]
        others = ["–" if value is None else f"{value:.4g}" for value in others_ms]
        sent = f"{plan.sent_bytes / KIB:.4g}"
        plans.add_row(f"{plan.bandwidth_mbps:g}", f"{plan.latency_ms:.4g}", sent, escape(plan.text), *period, *others)
    terminal.show(cuts, plans)
