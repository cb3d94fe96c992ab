"""Parameters of deployments and of their schedules are looked at when they are registered, and runs keep their names."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prefect.exceptions import ObjectNotFound

from flows.operations.deployments import checks, named_run
from flows.operations.deployments.checks import FORMS, check_parameters, replace_earlier
from tests.support.docs.documents import ROOT

DEPLOYED = "flows/operations/deployments/deployed.py"
LATER: dict[str, dict[str, Any]] = {"retarget_to": {"supernet": "net"}, "deploy_to": {"device": "ncnn"}}
"""Fields that a deployment may leave open, and a schedule not."""


def written(folder: Path, function: str, **more: Any) -> str:
    """A file with one deployment of a function."""
    file = folder / "prefect.yaml"
    file.write_text(yaml.safe_dump({"deployments": [{"name": "mine", "entrypoint": f"{DEPLOYED}:{function}", **more}]}))
    return str(file)


def test_the_deployments_of_the_repository_pass_and_each_has_a_name_of_its_own() -> None:
    check_parameters(str(ROOT / "prefect.yaml"))
    names = [one["name"] for one in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]]
    assert len(set(names)) == len(names)
    assert names[:4] == ["run", "retarget", "stream", "deploy"]


@pytest.mark.parametrize(
    ("function", "parameters", "line"),
    [
        ("run", {"overrides": ["finetune.epoch=3"]}, "option 'finetune.epoch': is unknown"),
        ("run", {"overrides": ["finetune.epochs"]}, "overrides.0: got 'finetune.epochs'"),
        ("work_nightly", {"preset": "nigtly"}, "preset: got 'nigtly'; allowed: none, "),
        (
            "work_nightly",
            {"presets": "nightly"},
            "option 'presets': is unknown; allowed: overrides, output_dir, preset",
        ),
        ("run", {"until": "reports"}, "until: got 'reports'"),
        ("stream_to", {"overrides": ["drift.severty=3"]}, "option 'drift.severty': is unknown"),
        ("retarget_to", {"overrides": ["search.sed=1"]}, "option 'search.sed': is unknown"),
        ("deploy_to", {"settings": {"deploy": {"keep": 0}}}, "deploy.keep: got 0"),
    ],
)
def test_a_wrong_parameter_of_a_deployment_or_schedule_is_one_line(
    function: str, parameters: dict[str, Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where, more = "", dict[str, Any](parameters=parameters)
    if function in LATER:
        where = ", schedule 'morning'"
        more = {"schedules": [{"cron": "0 5 * * *", "slug": "morning", "parameters": LATER[function] | parameters}]}
    file = written(tmp_path, function, **more)
    with pytest.raises(SystemExit) as ended:
        check_parameters(file)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith(f"autotailor: {file}: deployment 'mine'{where}: {line}")
    assert told.endswith("; mend it there, and deploy again\n")
    assert told.count("\n") == 1


def test_a_schedule_needs_what_a_deployment_may_leave_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_parameters(written(tmp_path, "retarget_to"))
    night = {"cron": "0 5 * * *"}
    with pytest.raises(SystemExit):
        check_parameters(written(tmp_path, "retarget_to", schedules=[night]))
    assert "deployment 'mine', schedule '1': supernet: has no value" in capsys.readouterr().err
    check_parameters(written(tmp_path, "retarget_to", schedules=[night], parameters={"supernet": "net"}))


def test_what_prefect_fills_in_and_flows_of_others_are_not_looked_at(tmp_path: Path) -> None:
    check_parameters(
        written(tmp_path, "run", parameters={"overrides": ["finetune.epoch={{ prefect.variables.epochs }}"]})
    )
    check_parameters(written(tmp_path, "theirs", parameters={"overrides": 1}))
    file = tmp_path / "empty.yaml"
    file.write_text("name: nothing\n")
    check_parameters(str(file))


def test_each_deployed_flow_has_a_form() -> None:
    text = (ROOT / DEPLOYED).read_text()
    assert all(f"\ndef {function}(" in text for function in FORMS)
    assert text.count("\n@flow(") == len(FORMS)


def test_a_run_keeps_the_name_that_was_printed() -> None:
    form = {"preset": "quick", "model": "resnet26", "data": "default"}
    assert named_run("crimson-fox", form) == "crimson-fox: quick resnet26"
    assert named_run("crimson-fox: quick resnet26", form) == "crimson-fox: quick resnet26", "tried again"
    assert named_run("crimson-fox", {"preset": "none", "data": "default", "model": ""}) == "crimson-fox"
    assert named_run("crimson-fox", {"device": "ncnn"}) == "crimson-fox: ncnn"


class Known:
    """A server that knows the deployment `autotailor-adapt/adapt`, in the place of Prefect's client."""

    def __init__(self, schedules: list[str]) -> None:
        self.deployments = {"autotailor-adapt/adapt": SimpleNamespace(id="autotailor-adapt/adapt", schedules=schedules)}

    def read_deployment_by_name(self, name: str) -> SimpleNamespace:
        if name not in self.deployments:
            raise ObjectNotFound(KeyError(name))
        return self.deployments[name]

    def delete_deployment(self, deployment: str) -> None:
        del self.deployments[deployment]


@pytest.mark.parametrize("schedules", [[], ["every morning"]])
def test_the_deployment_of_an_earlier_name_is_replaced_unless_it_has_schedules(
    schedules: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Known(schedules)
    monkeypatch.setattr(checks, "get_client", lambda sync_client: nullcontext(server))
    replace_earlier("autotailor-adapt/adapt", "autotailor-retarget/retarget")
    assert bool(server.deployments) == bool(schedules)
    (line,) = capsys.readouterr().err.splitlines()
    assert "'autotailor-adapt/adapt' is now 'autotailor-retarget/retarget'" in line
    replace_earlier("autotailor-deploy/put", "autotailor-deploy/deploy")
    assert not capsys.readouterr().err
