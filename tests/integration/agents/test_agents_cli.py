"""The command line of the agent: clear refusals, private files, https, and stopping by signal."""

import datetime
import ipaddress
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from profiling_agents.cli import main
from profiling_agents.client import AgentClient, AgentError
from tests.support.agents import agent_processes as processes

NCNN = ("--backend", "ncnn")
Refusal = Callable[..., str]


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """The one line with which the command refuses these options, with exit code 2."""
    monkeypatch.setenv(processes.VARIABLE, processes.TOKEN)

    def refused(*options: str) -> str:
        assert main(options) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1
        return printed.err

    return refused


def test_an_occupied_port_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = processes.refused(*NCNN, "--port", port)
    assert f"--host 127.0.0.1 --port {port}: Address already in use; choose another with --port" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--backend"),
        (("--backend", "tflite"), "invalid choice: 'tflite'"),
        ((*NCNN, "--threads", "0"), "--threads"),
        ((*NCNN, "--threads", "4096"), "--threads: got 4096; allowed: 1 to"),
        ((*NCNN, "--cores", "4095"), "--cores: got 4095"),
        ((*NCNN, "--port", "65536"), "--port"),
        ((*NCNN, "--sensors-root", "absent"), "--sensors-root: invalid folder value: 'absent'"),
        ((*NCNN, "--frobnicate"), "unrecognized arguments: --frobnicate"),
        ((*NCNN, "--thread", "1"), "unrecognized arguments: --thread"),
        ((*NCNN, "--host", "0.0.0.0"), "not a loopback address; it takes --tls-cert"),
        ((*NCNN, "--host", "::", "--token-file", "absent"), "--token-file 'absent': cannot be read"),
        ((*NCNN, "--tls-cert", "absent"), "give both"),
        ((*NCNN, "--port", "0", "--tls-cert", "absent", "--tls-key", "absent"), "--tls-cert 'absent': cannot be used"),
    ],
)
def test_bad_options_are_one_line(refusal: Refusal, options: tuple[str, ...], message: str) -> None:
    assert message in refusal(*options)


def test_to_leave_this_machine_takes_a_token_besides_tls(
    refusal: Refusal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(processes.VARIABLE)
    certificate, key = write_certificate(tmp_path)
    options = (*NCNN, "--host", "0.0.0.0", "--tls-cert", str(certificate), "--tls-key", str(key))
    assert "not a loopback address; it takes --tls-cert, --tls-key and a token" in refusal(*options)


@pytest.mark.parametrize("token", ["short", "with spaces in the token", "ünïcödé-but-long-enough"])
def test_weak_tokens_are_refused(refusal: Refusal, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv(processes.VARIABLE, token)
    assert "not a token; allowed: at least 16" in refusal(*NCNN)


@pytest.mark.long
def test_token_files_must_be_private(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(processes.TOKEN + "\n")
    file.chmod(0o644)
    assert "others can read it; make it private with chmod 600" in processes.refused(*NCNN, "--token-file", str(file))
    file.chmod(0o600)
    with (
        processes.started([*NCNN, "--port", "0", "--token-file", str(file)], token=None) as (_, printed),
        AgentClient(printed["agent ready"], processes.TOKEN) as client,
    ):
        assert client.capabilities().backend == "ncnn"


def test_a_generated_token_is_in_a_private_file_that_goes_with_the_agent() -> None:
    with processes.started([*NCNN, "--port", "0"], token=None) as (process, printed):
        file = Path(printed["agent token"])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        with AgentClient(printed["agent ready"], file.read_text().strip()) as client:
            assert client.capabilities().threads == 1
        workers = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not file.parent.exists()
        assert not any(worker.is_running() for worker in workers)


@pytest.mark.parametrize("at_start", [signal.default_int_handler, signal.SIG_IGN])
def test_interrupting_stops_cleanly(at_start: Any) -> None:
    """Shells start what runs in the background with interrupts ignored."""
    before = signal.signal(signal.SIGINT, at_start)
    try:
        with processes.started() as (process, _):
            signal.signal(signal.SIGINT, before)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_https_with_an_own_certificate(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    options = [*NCNN, "--host", "0.0.0.0", "--port", "0", "--tls-cert", str(certificate), "--tls-key", str(key)]
    with processes.started(options) as (_, printed):
        url = printed["agent ready"].replace("0.0.0.0", "127.0.0.1")
        assert url.startswith("https://")
        with AgentClient(url, processes.TOKEN, ca_file=certificate) as client:
            assert client.capabilities().backend == "ncnn"
        with AgentClient(url, processes.TOKEN) as client, pytest.raises(AgentError, match="CERTIFICATE_VERIFY_FAILED"):
            client.capabilities()


def test_insecure_bind_says_what_it_does_and_still_asks_for_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "leave this machine without TLS: the token and the models cross the network unencrypted" in told
    with processes.started([*NCNN, "--host", "0.0.0.0", "--port", "0", "--insecure-bind"]) as (_, printed):
        url = printed["agent ready"].replace("0.0.0.0", "127.0.0.1")
        with AgentClient(url, "wrong") as client, pytest.raises(AgentError, match="wrong token"):
            client.capabilities()


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "agent")])
    now = datetime.datetime.now(datetime.UTC)
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(addresses, critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "cert.pem", folder / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file
