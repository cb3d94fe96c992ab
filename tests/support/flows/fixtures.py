"""One cache folder (Prefect's home, locks) for all tests of this folder, and one finished run that many look at."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks.operations.nightly.records import History
from tests.support.flows.prefect_server import Server, started
from tests.support.flows.text_run import TUNED
from tests.support.flows.tiny import FEW, SHORT_NIGHT, TINY
from tests.support.nights.made_nights import nights
from tests.support.postgres import Postgres, programs
from tests.support.postgres import postgres as started_postgres


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """XDG_CACHE_HOME in a temporary folder, apart from the user's own; the same for the tests of all tiers in one process.

    Prefect keeps the address of the first server of a process, so a second cache would have another one.
    """
    folder = tmp_path_factory.getbasetemp() / "cache"
    if os.environ.get("XDG_CACHE_HOME") == str(folder):
        yield folder
        return
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.delenv("PREFECT_HOME", raising=False)
        yield folder


@dataclass(frozen=True)
class Command:
    """Runs commands in one output folder, with the same words."""

    output: Path
    words: tuple[str, ...] = TINY

    def __call__(self, command: str, *overrides: str) -> dict[str, Any]:
        """The JSON result of a command that succeeds."""
        from flows.cli import main
        from tests.support.flows.databases import database_in

        file = self.output.parent / "result.json"
        places = (f"output_dir={self.output}", f"tracking.uri={database_in(self.output.parent)}")
        assert main([command, *self.words, *places, *overrides, "--json", str(file)]) == 0
        result: dict[str, Any] = json.loads(file.read_text())
        return result


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Commands in an output folder that all tests share."""
    return Command(tmp_path_factory.mktemp("run") / "out")


@pytest.fixture(scope="session")
def finished(command: Command) -> dict[str, Any]:
    """The report of the whole pipeline, once."""
    return command("run")


@pytest.fixture(scope="session")
def trained_stages(finished: dict[str, Any], command: Command) -> Callable[[Path, Sequence[str]], None]:
    """Copies finished stages of the shared run (their names) to another output folder: what a test is not about."""

    def copy(output: Path, names: Sequence[str]) -> None:
        for name in names:
            shutil.copytree(command.output / "stages" / name, output / "stages" / name)

    return copy


@pytest.fixture(scope="session")
def adapting(finished: dict[str, Any], command: Command, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Adapts the SuperNet of the shared run to two other devices."""
    supernet = Path(command("finetune")["stages"][0]["folder"]) / "supernet"
    output = tmp_path_factory.mktemp("adapted") / "out"
    words = [
        word for word in TINY if word.startswith(("data=", "profile.", "predict.", "refine.", "export.", "search."))
    ]
    words += [f"supernet={supernet}", FEW, "predict.recalibration_images=256", "export.formats=[onnx,ncnn]"]
    words += ["device=[torch,ncnn_bf16]", "device.torch.batch=4", "export.tolerance.bf16=0.3"]
    words += [
        "runtime_options.random_subnets=1",
        "runtime_options.rounds=3",
        "runtime_options.measure.time_cap_ms=3",
        "runtime_options.measure.patience=0",
    ]
    return Command(output, tuple(words))


@pytest.fixture(scope="session")
def adapted(adapting: Command) -> tuple[dict[str, Any], Path]:
    """The report of that adaptation, and its output folder."""
    return adapting("retarget"), adapting.output


@pytest.fixture(scope="session")
def adapted_night(
    adapting: Command, adapted: tuple[dict[str, Any], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Command]:
    """A night of that adaptation, after one whose record is made, and the command that works it."""
    own = Command(tmp_path_factory.mktemp("nights") / "out", (*adapting.words, *SHORT_NIGHT))
    shutil.copytree(adapted[1] / "stages", own.output / "stages")
    (earlier,) = nights(1, seed=0)
    History(own.output / "nights").add(earlier.model_copy(update={"network": "test_resnet-digits"}))
    return own("nightly"), own


@pytest.fixture(scope="session")
def leveled(
    command: Command, adapting: Command, adapted: tuple[dict[str, Any], Path]
) -> tuple[dict[str, Any], Command]:
    """The report of an adaptation whose bundle has all levels, and the command that made it.

    The second device is ncnn on this machine, so that the bundle has its format. It also stands for another machine, which
    counts as a hundredth of its time, behind fast links. Other runs have measured both devices already.
    """
    _, others = adapted
    words = [word for word in adapting.words if not word.startswith("device")]
    words += ["device=[onnxruntime,ncnn_bf16]", "export.bundle=true", "export.shared_bundle={onnxruntime:[ncnn_bf16]}"]
    words += ["export.offload=true", "partition.devices=[onnxruntime,ncnn_bf16]", "partition.bandwidth_mbps=[1000]"]
    words += ["partition.latency_ms=0.001", "partition.slow_down={ncnn_bf16:0.01}", "partition.coding=int8"]
    words += ["partition.plans_bandwidth_mbps=[10,10000]"]
    words += ["partition.radio={sending_mw:10,mw_per_mbps:1,waiting_mw:1}"]
    own = Command(others.with_name("leveled"), tuple(words))
    shutil.copytree(others / "stages", own.output / "stages")
    for luts in (command.output / "luts", others / "luts"):
        shutil.copytree(luts, own.output / "luts", dirs_exist_ok=True)
    return own("retarget"), own


@pytest.fixture(scope="session")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Command]:
    """The report of a run of a small text encoder, whose engine is tuned, and the command that made it."""
    own = Command(tmp_path_factory.mktemp("texts") / "out", TUNED)
    return own("run"), own


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Prefect server with the work pool and the deployments of docs/running.md, and the nights of a given SuperNet."""
    with started(tmp_path_factory.mktemp("prefect")) as server:
        documented = server.documented("bash", "prefect work-pool create")
        server.shell(documented.replace(" --name nightly", " --name nightly --name nightly-adapt"))
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server, with the file of its password where the driver looks."""
    folder = programs()
    if folder is None:
        pytest.skip("no PostgreSQL server (Debian's package postgresql)")
    with started_postgres(folder) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSFILE", str(server.passwords))
        yield server
