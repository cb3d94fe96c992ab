"""The arguments of `autotailor agent`."""

import pytest

from profiling_agents.cli import agent_parser


def test_models_run_in_the_sandbox_unless_a_flag_says_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    parser = agent_parser("autotailor agent")
    assert not parser.parse_args(["--backend", "ncnn"]).without_sandbox
    assert parser.parse_args(["--backend", "ncnn", "--without-sandbox"]).without_sandbox
    assert capsys.readouterr().err == ""


def test_the_former_name_of_the_flag_does_the_same_and_one_line_tells_the_new_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = agent_parser("autotailor agent")
    assert parser.parse_args(["--backend", "ncnn", "--without-walls"]).without_sandbox
    assert capsys.readouterr().err == "autotailor agent: --without-walls is now called --without-sandbox\n"
    assert "--without-walls" not in parser.format_help()
