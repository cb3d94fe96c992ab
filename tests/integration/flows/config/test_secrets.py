"""Passwords of addresses are in no line, dump, parameter or key."""

from typing import Any

import pytest

from adaptive_runtime.base.errors import AdaptiveError, without_passwords
from flows.cli import main
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from flows.operations.deployments import composed
from flows.pipeline.tracking import flatten
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError

SECRET = "a:b@c-d"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:pa@ss:word@host:5000/path", "http://user:***@host:5000/path"),
        ("'postgresql+psycopg://u:p@h/d' and 'http://v:q@i'", "'postgresql+psycopg://u:***@h/d' and 'http://v:***@i'"),
        ("postgresql://h/d?user=u&password=p&sslmode=require", "postgresql://h/d?user=u&password=***&sslmode=require"),
        ("http://host:5000/a@b", "http://host:5000/a@b"),
        ("user@host:/folder", "user@host:/folder"),
        ("redis://:p@h:6379/0", "redis://:***@h:6379/0"),
    ],
)
def test_texts_are_shown_without_passwords(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
    assert str(AdaptiveError("where", f"got {text}")) == f"where: got {shown}"


def configured(*words: str) -> RunConfig:
    """A validated config."""
    return validate(RunConfig, compose_config("config", list(words)))


def test_a_config_keeps_its_passwords_and_shows_none() -> None:
    uri, locks = f"http://user:{SECRET}@mlflow:5000", f"postgresql://user:{SECRET}@db/locks"
    config = configured(f"tracking.uri='{uri}'", f"locks='{locks}'")
    assert (config.tracking.uri, config.locks) == (uri, locks)
    plain = config.model_dump(mode="json")
    assert (plain["tracking"]["uri"], plain["locks"]) == (
        "http://user:***@mlflow:5000",
        "postgresql://user:***@db/locks",
    )
    other = configured(f"tracking.uri='{uri.replace(SECRET, 'other')}'", f"locks='{locks.replace(SECRET, 'other')}'")
    assert digest_of(other.model_dump(mode="json")) == digest_of(plain)
    shown = [repr(config), str(config), config.model_dump_json(), str(config.model_dump()), str(dict(flatten(plain)))]
    assert not any(SECRET in text for text in shown)


def test_the_shown_config_of_a_command_has_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"tracking.uri='http://user:{SECRET}@mlflow:5000'", "--cfg", "job"]) == 0
    told = capsys.readouterr().out
    assert "http://user:***@mlflow:5000" in told
    assert SECRET not in told


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("locks=sqlite:///locks.db", "'sqlite:///locks.db'; allowed: null, or postgresql"),
        (f"locks='mysql://user:{SECRET}@db/locks'", "'mysql://user:***@db/locks'; allowed"),
        ("locks='postgresql://user:***@db/locks'", "give the address anew"),
        ("tracking.uri='http://user:***@mlflow'", "give the address anew"),
    ],
)
def test_addresses_that_cannot_be_meant_are_one_line(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["enumerate", word]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert SECRET not in told


@pytest.mark.parametrize(
    "form",
    [
        {"overrides": [f"tracking.uri=http://user:{SECRET}@mlflow"]},
        {"settings": {"tracking": {"uri": f"http://user:{SECRET}@mlflow"}}},
        {"settings": {"devices": [{"name": "ncnn", "agent": f"http://user:{SECRET}@board"}]}},
    ],
)
def test_a_form_takes_no_passwords_since_prefect_shows_parameters(form: dict[str, Any]) -> None:
    given: dict[str, Any] = {"overrides": [], "settings": None, **form}
    with pytest.raises(UserError, match="has a password, and Prefect stores and shows parameters") as refused:
        composed("config", [], given["overrides"], given["settings"])
    assert SECRET not in str(refused.value)
