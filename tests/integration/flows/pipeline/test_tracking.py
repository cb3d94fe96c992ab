"""MLflow, for real, in sqlite."""

import subprocess
import sys
from pathlib import Path

import mlflow.onnx
import pytest
from mlflow import MlflowClient

from flows.pipeline.tracking import Tracker, flatten, start_tracking
from flows.pipeline.tracking.addresses import TrackingAddress, address_of, path_of
from flows.pipeline.tracking.models import log_winners
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError
from tasks.base.schemas.exports import Exports
from tests.support.flows.databases import database_in
from tests.support.flows.made_exports import made_exports
from tests.support.postgres import Postgres


@pytest.fixture
def address(tmp_path: Path) -> TrackingAddress:
    """A database in a folder of its own."""
    return address_of(database_in(tmp_path))


@pytest.fixture
def tracker(address: TrackingAddress) -> Tracker:
    """A pipeline run in a fresh database."""
    return start_tracking(address, "tests", "k1", "net")


WAITING = """
import sys
from flows.pipeline.tracking import start_tracking
from flows.pipeline.tracking.addresses import address_of
print("ready", flush=True)
sys.stdin.readline()
print(start_tracking(address_of(sys.argv[1]), "tests", sys.argv[2], "net").run_id)
"""


def _waiting(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WAITING, *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.long
def test_commands_that_start_together_make_one_database(tmp_path: Path) -> None:
    address = address_of(f"sqlite:///{tmp_path}/new.db")
    started = [_waiting(address.uri, f"k{at}") for at in range(3)]
    for one in started:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n", one.communicate()
    for one in started:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    told = [one.communicate(timeout=300) for one in started]
    assert [one.returncode for one in started] == [0] * 3, [error[-500:] for _, error in told]
    client = MlflowClient(address.uri)
    experiments = [one.experiment_id for one in client.search_experiments() if one.name == "tests"]
    assert len(experiments) == 1
    runs = {run.info.run_id for run in client.search_runs(experiments)}
    assert runs == {found.strip().splitlines()[-1] for found, _ in told}
    assert len(runs) == 3


def test_stage_runs_are_nested_and_keep_metrics_over_steps(tracker: Tracker) -> None:
    run_id = tracker.start_stage("finetune", "abc")
    metrics = tracker.metrics(run_id)
    for step, loss in enumerate((3.0, 2.0, 1.0)):
        metrics.add({"loss": loss}, step)
    metrics.flush()
    tracker.finish(run_id)
    run = tracker.client.get_run(run_id)
    assert run.data.tags["mlflow.parentRunId"] == tracker.run_id
    assert run.info.status == "FINISHED"
    assert [metric.value for metric in tracker.client.get_metric_history(run_id, "loss")] == [3.0, 2.0, 1.0]


def test_a_run_that_never_ended_goes_on(tracker: Tracker, address: TrackingAddress) -> None:
    stage = tracker.start_stage("finetune", "abc")
    again = start_tracking(address, "tests", "k1", "net")
    assert again.run_id == tracker.run_id
    assert again.start_stage("finetune", "abc") == stage
    assert again.start_stage("finetune", "other key") != stage
    again.finish(again.run_id)
    assert start_tracking(address, "tests", "k1", "net").run_id != tracker.run_id


def test_an_interrupted_run_goes_on_and_is_running_again(tracker: Tracker, address: TrackingAddress) -> None:
    tracker.finish(tracker.run_id, "KILLED")
    again = start_tracking(address, "tests", "k1", "net")
    assert again.run_id == tracker.run_id
    assert again.client.get_run(again.run_id).info.status == "RUNNING"


def test_params_are_the_flattened_config_and_can_be_logged_twice(tracker: Tracker) -> None:
    config = {
        "finetune": {"epochs": 3},
        "device": {"ncnn": {"threads": 1}},
        "space": {},
        "wish": {"*.depth": 2},
        "long": "x" * 9000,
    }
    config["many"] = {str(number): number for number in range(150)}
    tracker.log_params(tracker.run_id, config)
    tracker.log_params(tracker.run_id, config)
    params = tracker.client.get_run(tracker.run_id).data.params
    assert params["finetune.epochs"] == "3"
    assert params["device.ncnn.threads"] == "1"
    assert params["space"] == "{}"
    assert params["wish._.depth"] == "2"
    assert len(params["long"]) == 6000
    assert params["many.149"] == "149"
    assert dict(flatten({"a": {"b": [1, 2]}})) == {"a.b": "[1, 2]"}


def test_a_registered_supernet_points_at_its_files_once_per_digest(tracker: Tracker, tmp_path: Path) -> None:
    folder = tmp_path / "supernet"
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes(b"weights")
    tracker.log_artifact(tracker.run_id, tmp_path, "supernet")
    for _ in range(2):
        tracker.register("autotailor-net", tracker.run_id, "supernet", "d1")
    client: MlflowClient = tracker.client
    (version,) = client.search_model_versions("name = 'autotailor-net'")
    assert version.run_id is not None
    assert version.source is not None
    files = client.list_artifacts(version.run_id, "supernet")
    assert version.tags["autotailor.digest"] == "d1"
    assert [file.path for file in files] == ["supernet/weights.safetensors"]
    assert version.source.endswith("/supernet")
    assert client.get_run(tracker.run_id).data.tags["z.digest.supernet"] == digest_of(folder)


def test_an_alias_points_at_the_version_of_a_content(tracker: Tracker, tmp_path: Path) -> None:
    name = "autotailor-net"
    for number, digest in enumerate(("d1", "d2"), 1):
        (tmp_path / "supernet").write_bytes(digest.encode())
        run_id = tracker.start_stage("finetune", digest)
        tracker.log_artifact(run_id, tmp_path, "supernet")
        tracker.register(name, run_id, "supernet", digest)
        tracker.point(name, digest, "candidate")
        assert int(tracker.client.get_model_version_by_alias(name, "candidate").version) == number
    tracker.point(name, "d1", "champion")
    assert int(tracker.client.get_model_version_by_alias(name, "candidate").version) == 2
    assert int(tracker.client.get_model_version_by_alias(name, "champion").version) == 1


def test_versions_of_the_libraries_are_tags(tracker: Tracker) -> None:
    assert "version.torch" in tracker.client.get_run(tracker.run_id).data.tags


def test_a_tracking_server_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tracking\.uri 'foo://bar': .*tracking.uri=sqlite"):
        start_tracking(TrackingAddress("foo://bar", None), "tests", "k", "net")


def test_runs_of_one_network_have_names_of_their_own(tracker: Tracker, address: TrackingAddress) -> None:
    other = start_tracking(address, "tests", "k2", "net")
    found = [tracker.client.get_run(each.run_id).info.run_name for each in (tracker, other)]
    assert len(set(found)) == 2
    assert all(name.startswith("net 20") for name in found)
    assert [name.split()[-1] for name in found] == ["k1", "k2"]


def test_artifacts_that_another_run_has_are_linked_and_not_stored_twice(tracker: Tracker, tmp_path: Path) -> None:
    source = tmp_path / "stage" / "supernet" / "weights"
    source.parent.mkdir(parents=True)
    source.write_bytes(b"weights")
    (tmp_path / "stage" / "ncnn").mkdir()
    (tmp_path / "stage" / "ncnn" / "front.json").write_text("{}")
    runs = [tracker.start_stage("finetune", key) for key in ("first", "second")]
    for run_id in runs:
        tracker.log_artifact(run_id, tmp_path / "stage", "supernet")
        tracker.log_artifact(run_id, tmp_path / "stage", "ncnn/front.json")
    folders = [path_of(tracker.client.get_run(run_id).info.artifact_uri) for run_id in runs]
    first, second = (folder / "supernet" / "weights" for folder in folders)
    assert first.samefile(second)
    assert not first.samefile(source)
    assert all((folder / "ncnn" / "front.json").read_text() == "{}" for folder in folders)
    assert tracker.client.get_run(runs[1]).data.tags["z.artifact.supernet"] == f"runs:/{runs[1]}/supernet"


def test_a_damaged_artifact_of_another_run_is_stored_anew(tracker: Tracker, tmp_path: Path) -> None:
    (tmp_path / "lut").write_bytes(b"table")
    runs = [tracker.start_stage("profile", key) for key in ("first", "second")]
    tracker.log_artifact(runs[0], tmp_path, "lut")
    path_of(tracker.client.get_run(runs[0]).info.artifact_uri).joinpath("lut").write_bytes(b"tabel")
    tracker.log_artifact(runs[1], tmp_path, "lut")
    assert path_of(tracker.client.get_run(runs[1]).info.artifact_uri).joinpath("lut").read_bytes() == b"table"


def test_a_run_that_ends_ends_its_stages(tracker: Tracker) -> None:
    stage = tracker.start_stage("profile/ncnn", "abc")
    tracker.end("KILLED")
    assert {tracker.client.get_run(run_id).info.status for run_id in (stage, tracker.run_id)} == {"KILLED"}


def test_a_run_that_was_shot_is_ended_by_the_next_one_in_its_folder(tracker: Tracker, address: TrackingAddress) -> None:
    tracker.end_lost("out", nobody)
    stage = tracker.start_stage("finetune", "abc")
    elsewhere = start_tracking(address, "tests", "k2", "net")
    elsewhere.end_lost("other", nobody)
    assert tracker.client.get_run(tracker.run_id).info.status == "RUNNING"
    here = start_tracking(address, "tests", "k3", "net")
    here.end_lost("out", lambda key: key == "k1")
    runs = (tracker.run_id, stage, elsewhere.run_id, here.run_id)
    assert {here.client.get_run(run_id).info.status for run_id in runs} == {"RUNNING"}, "a worker is in the first"
    here.end_lost("out", nobody)
    assert [here.client.get_run(run_id).info.status for run_id in runs] == ["KILLED", "KILLED", "RUNNING", "RUNNING"]


def nobody(key: str) -> bool:
    """No worker is in a run."""
    return False


def test_workers_of_a_run_tell_each_stage_once(tracker: Tracker, address: TrackingAddress) -> None:
    other = start_tracking(address, "tests", "k1", "net")
    assert other.run_id == tracker.run_id
    assert not other.has_reported("profile/ncnn", "abc")
    stage = tracker.start_stage("profile/ncnn", "abc")
    assert not other.has_reported("profile/ncnn", "abc")
    tracker.set_reported(stage)
    tracker.finish(stage)
    assert other.has_reported("profile/ncnn", "abc")
    assert not other.has_reported("profile/ncnn", "abd")
    assert not other.has_reported("profile/onnxruntime", "abc")


def test_what_follows_the_stages_is_told_once(tracker: Tracker) -> None:
    told: list[str] = []
    for _ in range(2):
        tracker.once("report", lambda: told.append("report"))
    assert told == ["report"]


def test_a_description_grows_and_keeps_what_its_reader_wrote(tracker: Tracker) -> None:
    tracker.describe("first")
    tracker.client.set_tag(tracker.run_id, "mlflow.note.content", "first, of use")
    for text in ("first", "second", "second"):
        tracker.describe(text)
    assert tracker.client.get_run(tracker.run_id).data.tags["mlflow.note.content"] == "first, of use\n\nsecond"


def test_winners_load_from_the_pipeline_run_and_are_stored_once(
    tracker: Tracker, address: TrackingAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "export").mkdir()
    exports = made_exports(tmp_path / "export")
    monkeypatch.setattr(Exports, "read", lambda path: exports)
    again = start_tracking(address, "tests", "k2", "net")
    for each in (tracker, again):
        log_winners(each, {"ncnn": tmp_path / "export"})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address.uri)
    names = "models/ncnn/1ms-a-net-01234567"
    files = []
    for each in (tracker, again):
        run = each.client.get_run(each.run_id)
        uri = f"runs:/{each.run_id}/{names}"
        assert f'mlflow.onnx.load_model("{uri}")' in run.data.tags["mlflow.note.content"]
        assert mlflow.onnx.load_model(uri).graph.name == "relu"
        files.append(path_of(run.info.artifact_uri) / names / "0123456789abcdef.onnx")
    assert files[0].samefile(files[1])
    assert not files[0].is_symlink()


def test_tags_of_digests_come_after_all_others(tracker: Tracker, tmp_path: Path) -> None:
    (tmp_path / "lut").write_bytes(b"table")
    tracker.log_artifact(tracker.run_id, tmp_path, "lut")
    tracker.set_reported(tracker.start_stage("profile", "abc"))
    tags = sorted(tag for tag in tracker.client.get_run(tracker.run_id).data.tags if not tag.startswith("mlflow."))
    assert tags[-2:] == ["z.artifact.lut", "z.digest.lut"]
    assert tags[:2] == ["autotailor.key", "autotailor.stage"]
    assert all(tag.startswith("version.") for tag in tags[2:-2])


def test_postgresql_has_its_own_driver_and_artifacts_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        found = address_of(f"{scheme}://user@host:5433/mlflow")
        assert found == TrackingAddress("postgresql+psycopg://user@host:5433/mlflow", tmp_path / "mlartifacts")


def test_a_run_in_postgresql_goes_on_like_any_other(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "front.json").write_text("{}")
    address = address_of(postgres.database("tracked"))
    first = start_tracking(address, "tests", "k1", "net")
    stage = first.start_stage("search/ncnn", "abc")
    again = start_tracking(address, "tests", "k1", "net")
    assert (again.run_id, again.start_stage("search/ncnn", "abc")) == (first.run_id, stage)
    again.log_artifact(stage, tmp_path, "front.json")
    assert path_of(again.client.get_run(stage).info.artifact_uri).is_relative_to(tmp_path / "mlartifacts")
    again.register("net", stage, "front.json", "d")
    again.end()
    assert again.client.get_run(first.run_id).info.status == "FINISHED"


def test_the_password_of_a_tracking_uri_is_in_no_line(postgres: Postgres) -> None:
    wrong = postgres.url("postgres", password=True).replace(postgres.password, "wrong-password")
    with pytest.raises(
        UserError, match=r"tracking\.uri: PostgreSQL cannot be used \(.*authentication failed"
    ) as refused:
        start_tracking(address_of(wrong), "tests", "k", "net")
    with pytest.raises(UserError, match=r"tracking\.uri 'foo://user:\*\*\*@host/name'") as unknown:
        start_tracking(address_of("foo://user:wrong-password@host/name"), "tests", "k", "net")
    assert unknown.value.__cause__ is None
    for told in (refused, unknown):
        assert "wrong-password" not in str(told.value)
    assert "wrong-password" not in f"{address_of(wrong)} {address_of(wrong)!r}"
