"""Every `autotailor` command line that the documents show is one that the command line accepts."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import profiling_agents.serving.relay
import profiling_agents.serving.server
import tailor_ir
from adaptive_runtime.samples.inputs import FIRST_WORD, Vocabulary
from flows.cli import main
from flows.cli.arguments import parse
from flows.cli.composed import config_of
from flows.cli.words import COMMANDS
from flows.config import RetargetConfig, RunConfig
from flows.config.compose import compose_config, split_sweep
from flows.config.validate import validate
from profiling_agents.network.endpoint import Endpoint, check_bind
from profiling_agents.serving.server import check_relay
from tasks.data import DataSettings, load
from tasks.data.problems import problem_named
from tasks.data.samples import AnyForm, form_of
from tasks.data.source import Scaling
from tasks.evaluation.models import create
from tests.support.docs.documents import DOCUMENTS, Command, commands, device_commands, write_files

SHOWN = [command for document in DOCUMENTS for command in commands(document)]
ON_DEVICES = [command for document in DOCUMENTS for command in device_commands(document)]
WORDS = 100
"""Numbers of words are below it."""
TOKEN = "0123456789abcdef" * 4


def configs_of(words: Sequence[str]) -> list[RunConfig | RetargetConfig]:
    """What the command would run: one validated config, or one for each combination of a sweep."""
    arguments = parse(words)
    root = "retarget" if arguments.retargets else "config"
    model: type[RunConfig | RetargetConfig] = RetargetConfig if arguments.retargets else RunConfig
    sweep = split_sweep(arguments.overrides) if arguments.multirun else [list(arguments.overrides)]
    return [validate(model, compose_config(root, overrides, arguments.config_folder)) for overrides in sweep]


def assert_accepted(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, compiled: set[str] | None) -> None:
    """The command line takes the command. `compiled`: networks with spaces that were compiled before; None: compile none."""
    write_files(command.document, folder)
    monkeypatch.chdir(folder)
    if not {"--help", "--version"}.isdisjoint(command.words):
        assert main(command.words) == 0
    elif command.words[0] in ("agent", "relay"):
        assert_service_would_start(command.words, monkeypatch)
    elif COMMANDS[command.words[0]].config:
        assert config_of(parse(command.words))
    else:
        for config in configs_of(command.words):
            if isinstance(config, RunConfig) and compiled is not None:
                assert_network_takes_the_space(config, compiled)


def assert_network_takes_the_space(config: RunConfig, once: set[str]) -> None:
    """Where a command names variables, the network has them; a callable exists and can be called. once: what was compiled."""
    if config.model.kind == "callable" or config.space:
        form = _form(config.data)
        settings = config.model.model_copy(update={"pretrained": False, "checkpoint": None})
        same = f"{settings} {form} {config.data.problem} {config.space}"
        if same in once:
            return
        network = create(settings, 10, form, problem=problem_named(config.data.problem))
        net = tailor_ir.compile(network, form.blank(1), config.space or None)
        assert net.space.distinct > 1
        once.add(same)


def _form(data: DataSettings) -> AnyForm:
    """What samples are, without their files; those with several inputs are made."""
    if data.sample == "sample":
        return load(data, "train").form
    vocabulary = Vocabulary(words=tuple(map(str, range(WORDS - FIRST_WORD)))) if data.sample == "text" else None
    return form_of(data, Scaling("none", "none", vocabulary=vocabulary))


def assert_service_would_start(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The service's own command line takes it, up to the point where it would bind and serve."""
    if "--token-file" in words:
        file = Path(words[words.index("--token-file") + 1])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TOKEN)
        file.chmod(0o600)
    started: list[Any] = []

    def remember_agent(options: profiling_agents.serving.capabilities.ServerOptions) -> None:
        check_bind(options.network)
        if options.pull:
            check_relay(options.pull, options.network)
        started.append(options)

    def remember_relay(network: Endpoint, max_model_mib: int) -> None:
        check_bind(network)
        started.append(network)

    monkeypatch.setattr(profiling_agents.serving.server, "serve", remember_agent)
    monkeypatch.setattr(profiling_agents.serving.relay, "serve_relay", remember_relay)
    monkeypatch.delitem(os.environ, "AUTOTAILOR_AGENT_TOKEN", raising=False)
    assert main(words) == 0
    assert len(started) == 1
