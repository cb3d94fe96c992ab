"""`autotailor fleet`: a registry of devices, their tables, and roll-outs of bundles. Only `fleet profile` loads torch."""

from sqlalchemy.exc import SQLAlchemyError

from flows.cli.arguments import FLEET, Arguments
from flows.cli.fleet.actions import ACTIONS, FleetAnswer
from flows.cli.fleet.config import FleetConfig
from flows.cli.words import FLEET_ACTIONS
from flows.config.compose import compose_config
from flows.config.validate import nearest, validate
from tasks.base.errors import UserError, shortened
from tasks.operations.fleet.registry import Registry

FORMS = {form.split()[0]: form for form in FLEET_ACTIONS}
PLACE = ("database", "window_s")
BOUND = ("host", "tls_cert", "tls_key", "allowed_hosts", "insecure_bind")
OPTIONS = {
    "serve": (*PLACE, *BOUND, "files", "port"),
    "relay": (*PLACE, *BOUND, "relay_port", "token_file", "max_model_mib"),
    "enrol": (*PLACE, "count", "to", "owner", "valid_hours"),
    "devices": PLACE,
    "remove": PLACE,
    "profile": (*PLACE, "relay", "token_file", "ca_file", "store", "profile"),
    "add": (*PLACE, "files", "name", "key_file"),
    "rollout": (*PLACE, "kinds", "rollout"),
    "rollouts": PLACE,
    "halt": PLACE,
    "go-on": PLACE,
}


def execute(arguments: Arguments) -> FleetAnswer:
    """Execute the command, show its result, and return it as JSON. UserError, AdaptiveError, AgentError: one line."""
    action, word = check(arguments)
    config = config_of(arguments)
    registry = Registry.open(config.database, config.window_s)
    try:
        return ACTIONS[action](registry, config, word)
    except SQLAlchemyError as error:
        got = f"failed ({shortened(getattr(error, 'orig', None) or error)})"  # `error` itself contains the statement
        raise UserError(registry.where, got, next_step="try again when it is there") from error
    finally:
        registry.close()


def config_of(arguments: Arguments) -> FleetConfig:
    """The validated config."""
    return validate(FleetConfig, compose_config(FLEET, arguments.overrides, arguments.config_folder))


def check(arguments: Arguments) -> tuple[str, str]:
    """The action and its word. UserError: unknown action, too few or many words, or options that the action does not have."""
    action, words = (*arguments.words[:1], "")[0], arguments.words[1:]
    if action not in FORMS:
        hint = nearest(action, FORMS) or f"see 'autotailor {FLEET} --help'"
        got = f"'{action}' is unknown" if action else "nothing to do"
        raise UserError(FLEET, got, allowed=", ".join(FLEET_ACTIONS), next_step=hint)
    if len(words) != len(FORMS[action].split()) - 1:
        raise UserError(
            f"{FLEET} {action}", f"got {len(words)} names", next_step=f"write autotailor {FLEET} {FORMS[action]}"
        )
    for override in arguments.overrides:
        key = override.split("=", 1)[0].lstrip("+~")
        if key.split(".")[0] not in OPTIONS[action]:
            raise UserError(f"option '{key}'", f"is not one of '{FLEET} {action}'", allowed=", ".join(OPTIONS[action]))
    return action, (*words, "")[0]
