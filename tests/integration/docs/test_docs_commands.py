"""Every `autotailor` command line that the documents show is one that the command line accepts."""

import re
from pathlib import Path

import pytest

from adaptive_runtime.cli import command_line
from flows.config import RunConfig
from tests.support.docs.commands import ON_DEVICES, SHOWN, assert_accepted, configs_of
from tests.support.docs.documents import ROOT, Command

FIRST_PAGES = ("README.md", "getting-started.md", "running.md", "agents.md", "runtime.md")
"""Pages whose commands are tried in `make test`; those of all pages, with the networks that they name, in the nightly tier."""
SOON = [command for command in SHOWN if command.document.name in FIRST_PAGES]


@pytest.mark.parametrize("command", ON_DEVICES, ids=lambda command: f"{command.where} {command.words[0]}")
def test_a_shown_command_of_the_run_time_is_accepted(command: Command) -> None:
    assert command_line().parse_args(command.words).command == command.words[0]


def test_the_documents_show_commands_of_the_run_time() -> None:
    assert {"search", "serve", "split"} <= {command.words[0] for command in ON_DEVICES}


def test_the_documents_show_commands() -> None:
    assert len(SHOWN) > 20
    assert {"run", "search", "retarget", "agent"} <= {command.words[0] for command in SHOWN}


@pytest.mark.few(3)
@pytest.mark.parametrize("command", SOON, ids=lambda command: f"{command.where} {command.words[0]}")
def test_a_command_of_the_first_pages_is_accepted(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_accepted(command, tmp_path, monkeypatch, None)


def test_the_readme_names_the_network_of_the_demo() -> None:
    (name,) = {config.model.name for config in configs_of(["run"]) if isinstance(config, RunConfig)}
    shown = name.replace("resnet", "ResNet-")
    assert f"trains a {shown} " in (ROOT / "README.md").read_text()
    assert f"bundled noisy digits, {shown}," in (ROOT / "docs" / "getting-started.md").read_text()


def test_the_first_words_of_the_readme_name_the_tasks_that_are_built_in() -> None:
    _, first, *_ = (ROOT / "README.md").read_text().split("\n\n")
    words = " ".join(first.split())
    assert "Built in are classification of images" in words
    assert "your own samples, loss and score" in words
    assert not re.search(r"\b(any|every) (dnn|(neural )?network|model)\b", words, re.IGNORECASE)
