"""What happened to tools of this kind, tried on running agents; docs/security.md says which test belongs to what."""

import ast
import io
import pickle
import re
import ssl
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import httpx
import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from profiling_agents.client import AgentClient, AgentError, ModelJob
from profiling_agents.messages import MIB
from tests.integration.agents.test_agents_cli import write_certificate
from tests.support.agents import agent_models as models
from tests.support.agents import agent_processes as processes

ROOT = Path(__file__).resolve().parents[3]
SECURITY = ROOT / "docs" / "security.md"
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
ATTACKS = 16
FLOORS = {
    "prefect": "3.6.28",
    "mlflow": "3.11",
    "onnx": "1.21",
    "torch": "2.10",
    "hydra-core": "1.3.6",
    "starlette": "0.49.1",
}
PRODUCT = ("tailor_ir", "adaptive_runtime", "profiling_agents", "tasks", "flows")
NEVER_CALLED = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "torch.load", "torch.save", "joblib.load", "marshal.loads"),
    *("yaml.load", "yaml.unsafe_load", "hydra.utils.instantiate", "eval", "exec"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell"),
    *("tempfile.mktemp", "shutil.unpack_archive", "tarfile.open", "zipfile.ZipFile"),
}
UNPACKS_OWN_WHEEL = ROOT / "tasks/deploy/device_side/service.py"
"""Takes the wheel that the deployment has built or was given, by its digest: installing it runs its code anyway."""
NEVER_SAID = {"shell": True, "allow_pickle": True, "weights_only": False}


@dataclass(frozen=True)
class Target:
    """A running agent: its process, private folder, address and token."""

    process: psutil.Process
    folder: Path
    url: str
    token: str


@pytest.fixture(scope="module", params=["ncnn", "onnxruntime"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    options = ["--backend", request.param, "--port", "0", "--wall-limit-s", "8", "--memory-limit-mib", "1024"]
    with processes.started(options, token=None) as (process, printed):
        file = Path(printed["agent token"])
        token = file.read_text().strip()
        yield Target(psutil.Process(process.pid), file.parent, printed["agent ready"], token)


@pytest.fixture
def client(target: Target) -> Iterator[AgentClient]:
    with AgentClient(target.url, target.token) as one, one.lease():
        yield one


@pytest.fixture
def http(target: Target) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=target.url, headers={"Authorization": f"Bearer {target.token}"}, timeout=120) as one:
        granted = one.post("/v1/lease", json={"lease": "cd" * 16, "ttl_s": 30}).json()
        one.headers["Lease"] = granted["lease"]
        yield one
        one.delete("/v1/lease")


def test_an_agent_that_is_told_nothing_listens_on_loopback_only(target: Target) -> None:
    listening = [one for one in target.process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert [one.laddr.ip for one in listening] == ["127.0.0.1"]


def backend_of(client: AgentClient) -> str:
    return client.capabilities().backend


def still_measures(client: AgentClient) -> bool:
    (result,) = client.measure([models.convolution(backend_of(client), "good")])
    return result.state == "ok"


def in_place_of_files(job: ModelJob, content: bytes) -> ModelJob:
    return replace(job, key="attack", files=tuple(content for _ in job.files))


class Touching:
    """An object whose pickle makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_is_not_loaded_wherever_it_is_sent(http: httpx.Client, tmp_path: Path) -> None:
    marker = tmp_path / "loaded"
    content = pickle.dumps(Touching(marker))
    for path in ("/v1/jobs", "/v1/run", "/v1/lease"):
        assert http.post(path, content=content).status_code in (400, 422)
    assert not marker.exists()
    pickle.loads(content)  # noqa: S301 - shows that it would have
    assert marker.exists()


def test_a_pickle_in_the_place_of_a_model_is_only_bytes(client: AgentClient, tmp_path: Path) -> None:
    marker = tmp_path / "loaded"
    job = models.convolution(backend_of(client), "conv")
    (result,) = client.measure([in_place_of_files(job, pickle.dumps(Touching(marker)))])
    assert result.state == "failed"
    assert result.reason
    assert not marker.exists()
    assert still_measures(client)


def archives() -> list[bytes]:
    zipped, tarred = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("../../escaped", "x")
    with tarfile.open(fileobj=tarred, mode="w:gz") as tar:
        member = tarfile.TarInfo("../../escaped")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    return [zipped.getvalue(), tarred.getvalue()]


@pytest.mark.parametrize("number", [0, 1])
def test_an_archive_stays_one_file_named_by_its_digest(target: Target, http: httpx.Client, number: int) -> None:
    before = set((target.folder / "models").iterdir())
    headers = {"Content-Encoding": "gzip", "Content-Disposition": 'attachment; filename="../../escaped"'}
    sent = archives()[number]  # another second, other bytes
    stored = http.post("/v1/models", content=sent, headers=headers).json()
    new = {path.name for path in set((target.folder / "models").iterdir()) - before}
    assert new == {stored["sha256"]}
    assert (target.folder / "models" / stored["sha256"]).read_bytes() == sent
    assert not (target.folder.parent / "escaped").exists()


SHELL_WORDS = ["; touch {marker}", "$(touch {marker})", "`touch {marker}`", "--help", "-o{marker}", "| touch {marker}"]


@pytest.mark.parametrize("words", SHELL_WORDS)
def test_names_from_the_wire_reach_no_shell_and_no_option(client: AgentClient, tmp_path: Path, words: str) -> None:
    marker = tmp_path / "made"
    name = words.format(marker=marker)
    job = replace(models.convolution(backend_of(client), "conv"), key=name, output_names=(name,))
    (result,) = client.measure([job])
    assert (result.key, result.state) == (name, "failed")
    assert not marker.exists()
    assert name not in " ".join(one for child in target_children(client) for one in child.cmdline())


def target_children(client: AgentClient) -> list[psutil.Process]:
    port = int(client.url.rpartition(":")[2])
    agents = [one for one in psutil.Process().children() if port in {c.laddr.port for c in one.net_connections("inet")}]
    return [*agents, *(child for agent in agents for child in agent.children())]


def test_a_message_that_names_a_class_is_refused(http: httpx.Client) -> None:
    for body in (
        {"_target_": "os.system", "lease": "0" * 32},
        {"batch": "0" * 32, "jobs": [{"_target_": "os.system"}]},
        {"batch": "0" * 32, "jobs": [], "settings": {"_target_": "os.system"}},
    ):
        for path in ("/v1/lease", "/v1/jobs"):
            assert http.post(path, json=body).status_code == 422


def nested(depth: int) -> bytes:
    """An ONNX model of If in If in If."""

    def branch(level: int) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(f"y{level}", TensorProto.FLOAT, None)
        if level == 0:
            node = helper.make_node("Identity", ["in0"], ["y0"])
        else:
            inner = branch(level - 1)
            node = helper.make_node("If", ["condition"], [f"y{level}"], then_branch=inner, else_branch=inner)
        return helper.make_graph([node], f"g{level}", [], [output])

    graph = branch(depth)
    graph.input.append(helper.make_tensor_value_info("in0", TensorProto.FLOAT, (1, 4)))
    graph.initializer.append(helper.make_tensor("condition", TensorProto.BOOL, (), [True]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString()


def deep_protobuf(depth: int = 5000) -> bytes:
    """Length-delimited fields in one another: graphs in attributes in nodes, more than any parser should follow."""
    content = b""
    for _ in range(depth):
        length = len(content)
        varint = bytearray()
        while length > 0x7F:
            varint.append(length & 0x7F | 0x80)
            length >>= 7
        content = b"\x3a" + bytes(varint) + bytes([length]) + content
        if len(content) > MIB:
            break
    return content


def huge_layers() -> ModelJob:
    """A param file of a few lines whose layer asks for terabytes of weights."""
    layer = "InnerProduct f 1 1 in0 out0 0=2000000000 1=0 2=2000000000"
    return models.ncnn_job("attack", ["Input in0 0 1 in0", layer], 2, b"\0" * 64, (1, 16))


@pytest.mark.parametrize("kind", ["nested", "deep", "memory", "endless", "weights"])
def test_a_model_bomb_ends_in_its_own_process_with_its_reason(target: Target, client: AgentClient, kind: str) -> None:
    backend = backend_of(client)
    job = models.convolution(backend, "conv")
    bomb = {
        "nested": lambda: in_place_of_files(replace(job, input_shapes=((1, 4),)), nested(12)),
        "deep": lambda: in_place_of_files(job, deep_protobuf()),
        "memory": lambda: models.memory_bomb(backend, "attack"),
        "endless": lambda: models.endless(backend, "attack"),
        "weights": lambda: huge_layers() if backend == "ncnn" else in_place_of_files(job, b"\x08\x0a" * 500_000),
    }[kind]()
    before = target.process.memory_info().rss
    (result,) = client.measure([bomb])
    assert target.process.memory_info().rss - before < 16 * MIB
    if kind != "nested" or backend == "ncnn":
        assert result.state == "failed"
        assert result.reason
    assert still_measures(client)


def test_a_bomb_that_is_run_instead_of_measured_hits_the_same_limit(target: Target, client: AgentClient) -> None:
    bomb = models.memory_bomb(backend_of(client), "attack")
    before = target.process.memory_info().rss
    with pytest.raises(AgentError, match="job 'attack': memory limit: needs more than 1024 MiB"):
        client.run(bomb, [np.zeros(bomb.input_shapes[0], np.float32)])
    assert target.process.memory_info().rss - before < 16 * MIB
    assert still_measures(client)


def keep_elsewhere(tensor: onnx.TensorProto) -> None:
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../../etc/passwd")


def with_constant(graph: onnx.GraphProto) -> onnx.TensorProto:
    graph.node.append(helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", 1, (1,), [1.0])))
    found: onnx.TensorProto = graph.node[-1].attribute[0].t
    return found


def in_a_branch(model: onnx.ModelProto) -> onnx.TensorProto:
    graph = model.graph
    inner = helper.make_graph([], "inner", [], [helper.make_tensor_value_info("c", TensorProto.FLOAT, (1,))])
    graph.initializer.append(helper.make_tensor("condition", TensorProto.BOOL, (), [True]))
    graph.node.append(helper.make_node("If", ["condition"], ["z"], then_branch=inner, else_branch=inner))
    branch: onnx.GraphProto = graph.node[-1].attribute[0].g
    return with_constant(branch)


def in_a_function(model: onnx.ModelProto) -> onnx.TensorProto:
    opset = helper.make_opsetid("", 18)
    constant = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", 1, (1,), [1.0]))
    model.functions.append(helper.make_function("own", "Own", [], ["c"], [constant], [opset]))
    return model.functions[0].node[0].attribute[0].t


def in_a_default(model: onnx.ModelProto) -> onnx.TensorProto:
    in_a_function(model)
    default = helper.make_attribute("value", helper.make_tensor("c", 1, (1,), [1.0]))
    model.functions[0].attribute_proto.append(default)
    return model.functions[0].attribute_proto[0].t


def in_a_sparse_tensor(model: onnx.ModelProto) -> onnx.TensorProto:
    values = helper.make_tensor("sparse", TensorProto.FLOAT, (1,), [1.0])
    indices = helper.make_tensor("indices", TensorProto.INT64, (1,), [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    return model.graph.sparse_initializer[0].values


def in_training(model: onnx.ModelProto) -> onnx.TensorProto:
    return with_constant(model.training_info.add().initialization)


@pytest.mark.parametrize(
    "place",
    [
        lambda model: model.graph.initializer[0],
        lambda model: with_constant(model.graph),
        in_a_branch,
        in_a_function,
        in_a_default,
        in_a_sparse_tensor,
        in_training,
    ],
    ids=["weight", "constant", "branch", "function", "default", "sparse", "training"],
)
def test_external_data_is_refused_wherever_a_model_keeps_it(
    onnxruntime_agent: AgentClient, place: Callable[[onnx.ModelProto], onnx.TensorProto]
) -> None:
    job = models.convolution("onnxruntime", "conv")
    model = onnx.load_model_from_string(job.files[0])
    keep_elsewhere(place(model))
    (result,) = onnxruntime_agent.measure([in_place_of_files(job, model.SerializeToString())])
    assert result.reason is not None
    assert result.reason.startswith("the model keeps tensors in external data; save it as one file")


def test_floods_without_a_token_are_refused_and_memory_stays_flat(target: Target) -> None:
    headers = {f"x-{number}": "y" * 400 for number in range(40)}
    before = target.process.memory_info().rss
    with httpx.Client(base_url=target.url, timeout=120) as anonymous:
        for _ in range(100):
            assert anonymous.post("/v1/models", content=bytes(MIB), headers=headers).status_code == 401
    assert target.process.memory_info().rss - before < 16 * MIB


def test_the_folder_of_an_agent_is_private_and_goes_with_it(target: Target) -> None:
    assert stat.S_IMODE(target.folder.stat().st_mode) == 0o700
    assert target.folder.stat().st_uid == target.process.uids().real
    assert all(
        stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in target.folder.iterdir() if path.name != "child.log"
    )


@pytest.mark.parametrize(
    "path", ["/v1/jobs/..%2f..%2ftoken", "/v1/results/%2e%2e", "/v1/models/../../token", "/v1/%00"]
)
def test_paths_lead_out_of_nothing(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code in (404, 405)
    assert "token" not in answer.text.lower() or answer.json()["error"]


def test_nothing_answers_without_the_token_over_tls_either(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    options = ["--backend", "ncnn", "--host", "0.0.0.0", "--port", "0"]
    options += ["--tls-cert", str(certificate), "--tls-key", str(key)]
    with processes.started(options) as (_, printed):
        url = printed["agent ready"].replace("0.0.0.0", "127.0.0.1")
        with httpx.Client(
            base_url=url, verify=ssl.create_default_context(cafile=certificate), timeout=120
        ) as anonymous:
            assert anonymous.get("/v1/capabilities").status_code == 401
            assert anonymous.get("/v1/capabilities", headers={"Host": "evil.example"}).status_code == 403


def _name(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _tensors_alone(call: ast.Call) -> bool:
    """Whether a call is `torch.load(…, weights_only=True)`, which reads tensors and runs no code."""
    said = {keyword.arg: keyword.value for keyword in call.keywords}
    only = said.get("weights_only")
    return _name(call.func) == "torch.load" and isinstance(only, ast.Constant) and only.value is True


@pytest.mark.parametrize("package", PRODUCT)
def test_no_source_unpickles_evaluates_unpacks_or_calls_a_shell(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        allowed = {"zipfile.ZipFile"} if path == UNPACKS_OWN_WHEEL else set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                assert _name(node.func) not in NEVER_CALLED - allowed or _tensors_alone(node), f"{path}:{node.lineno}"
                for keyword in node.keywords:
                    value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                    unsafe = keyword.arg in NEVER_SAID and value is NEVER_SAID[keyword.arg]
                    assert not unsafe, f"{path}:{node.lineno}"


def test_libraries_are_at_or_above_the_versions_that_fix_known_holes() -> None:
    for name, floor in FLOORS.items():
        found = tuple(int(part) for part in re.findall(r"\d+", version(name))[:3])
        assert found >= tuple(map(int, floor.split("."))), f"{name} {version(name)} is older than {floor}"


@pytest.mark.long
def test_every_attack_of_the_security_page_names_tests_that_exist() -> None:
    rows = [line for line in SECURITY.read_text().splitlines() if line.startswith("| ") and "tests/" in line]
    assert len(rows) == ATTACKS
    for row in rows:
        named = NAMED_TEST.findall(row)
        assert named, row
        for file, test in named:
            assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}::{test}"


def test_inputs_of_a_run_may_be_zero_sized_or_not_finite(client: AgentClient) -> None:
    job = models.addition(backend_of(client), "add")
    x = np.full((1, 4, 5, 6), np.nan, np.float32)
    (output,) = client.run(job, [x, x])
    assert np.isnan(output).all()
