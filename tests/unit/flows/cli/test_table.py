"""The table of commands names functions and models that exist."""

import inspect
from dataclasses import replace

import pytest
from pydantic import BaseModel

from flows.cli.arguments import parse
from flows.cli.words import COMMANDS, loaded

OWN = {name: command for name, command in COMMANDS.items() if command.config}
PARAMETERS = {"run": ["arguments", "config"], "check": ["arguments"], "check_config": ["arguments", "config"]}


@pytest.mark.parametrize("name", OWN)
def test_a_command_with_a_config_has_a_model_and_functions_of_its_arguments(name: str) -> None:
    assert issubclass(loaded(OWN[name].config), BaseModel)
    assert OWN[name].run
    for field, parameters in PARAMETERS.items():
        if place := getattr(OWN[name], field):
            assert list(inspect.signature(loaded(place)).parameters) == parameters


@pytest.mark.parametrize("name", [name for name in COMMANDS if COMMANDS[name].service])
def test_a_service_takes_its_words(name: str) -> None:
    assert callable(loaded(COMMANDS[name].service))


@pytest.mark.parametrize("name", ["lut", "fleet"])
def test_each_action_has_options_and_a_function(name: str) -> None:
    command = COMMANDS[name]
    names = {form.split()[0] for form in command.actions}
    assert names == set(command.options) == set(loaded(f"flows.cli.{name}:ACTIONS"))


@pytest.mark.parametrize(
    ("command", "words", "retargets"),
    [
        ("retarget", (), True),
        ("nightly", ("+supernet=a",), True),
        ("nightly", ("never=a",), False),
        ("run", ("supernet=a", "never=a"), False),
    ],
)
def test_a_command_adapts_where_the_table_says_so(command: str, words: tuple[str, ...], retargets: bool) -> None:
    assert replace(parse([command]), overrides=words).retargets is retargets
