"""The table of commands names functions and models that exist."""

import inspect
from dataclasses import replace

import pytest
from pydantic import BaseModel

from flows.cli.arguments import parse
from flows.cli.words import COMMANDS, loaded
from tasks.base.errors import UserError

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
    ("words", "options"),
    [
        (
            ["net.onnx", "--data", "photos", "--budget-ms", "4", "--minutes", "10"],
            ["model=onnx", "model.path='net.onnx'", "data=unlabelled", "data.path='photos'", "problem=fidelity",
             "search.budgets_ms=[4]", "minutes=10"],
        ),
        (
            ["mine/net.py:small", "--data", "mine/net.py:splits", "--budget-ms", "2,4.5", "problem=own"],
            ["model=callable", "model.name='mine/net.py:small'", "model.trained=true", "data=own",
             "data.name='mine/net.py:splits'", "search.budgets_ms=[2,4.5]", "problem=own"],
        ),
        (
            ["resnet18.a1_in1k", "data=imagefolder", "data.path=photos"],
            ["model=timm", "model.name='resnet18.a1_in1k'", "model.pretrained=true", "data=imagefolder", "data.path=photos"],
        ),
    ],
)  # fmt: skip
def test_the_short_form_stands_for_options_of_run(words: list[str], options: list[str]) -> None:
    found = parse(["tailor", *words, "--dry-run"])
    assert list(found.overrides) == options
    assert found.dry_run
    assert found.question is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "tailor: got 0 networks"),
        (["a.onnx", "b.onnx", "--data", "photos"], "tailor: got 2 networks"),
        (["a.onnx"], "tailor: has no samples"),
        (["a.onnx", "--data", "photos", "--budget-ms", "fast"], "--budget-ms: got 'fast'"),
        (["a.onnx", "--data", "photos", "--minutes", "0"], "--minutes: got '0'"),
        ([__file__, "--data", "photos"], "export it to ONNX"),
        (["a.onnx", "--dada", "photos"], "--dada"),
    ],
)
def test_a_short_form_that_is_incomplete_is_one_line(words: list[str], line: str) -> None:
    with pytest.raises(UserError) as refused:
        parse(["tailor", *words])
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_minutes_of_another_command_are_an_option() -> None:
    with pytest.raises(UserError, match="--minutes: is not a flag of 'run'"):
        parse(["run", "--minutes", "3"])


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
