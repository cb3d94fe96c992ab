"""Automations of a Prefect server for this project's runs, created or updated by name.

`python -m flows.operations.deployments.automations TYPE/NAME` sends their messages by that notification block of the server.
They are also created without a block; the server's events then show their findings.
"""

import asyncio
import sys
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ActionTypes, ChangeFlowRunState, DoNothing, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound

from flows.machine.server import slow_start
from flows.operations.nightly import EVENT, RESOURCE
from tasks.base.errors import UserError

FLOW_RUN = "prefect.flow-run"
HEARTBEAT = f"{FLOW_RUN}.heartbeat"
BAD_ENDS = frozenset(f"{FLOW_RUN}.{state}" for state in ("Failed", "Crashed", "TimedOut"))
ENDS = BAD_ENDS | {f"{FLOW_RUN}.{state}" for state in ("Completed", "Cancelled")}
SILENT_S = 600
"""A flow run that is silent for this long has lost its process: three heartbeats at Prefect's default of 180 s [s]."""
NIGHTLY, OURS = "nightly", "autotailor"
"""Tags of the deployments in prefect.yaml, which their runs inherit."""
Tell = Callable[[str, str], ActionTypes]


def automations(tell: Tell) -> list[AutomationCore]:
    """All automations. tell: builds the action that sends a subject and a text; both are Jinja templates over the event."""
    return [
        AutomationCore(
            name="autotailor: a night failed",
            description="A run of the deployment nightly ended in Failed, Crashed or TimedOut.",
            trigger=EventTrigger(expect=set(BAD_ENDS), match=_resources(f"{FLOW_RUN}.*"), match_related=_tag(NIGHTLY)),
            actions=[
                tell("A night failed", "{{ flow_run.name }}: {{ flow_run.state.name }}: {{ flow_run.state.message }}")
            ],
        ),
        AutomationCore(
            name="autotailor: a night regressed",
            description="A front, latencies or predictors are worse than the night before, by more than noise.",
            trigger=EventTrigger(expect={EVENT}, match=_resources(f"{RESOURCE}.*")),
            actions=[tell("A night regressed", "{{ event.payload.line }}")],
        ),
        AutomationCore(
            name="autotailor: a run lost its process",
            description="A flow run that is Running reports nothing any more: it is Crashed.",
            trigger=EventTrigger(
                after={HEARTBEAT},
                expect={HEARTBEAT, *ENDS},
                match=_resources(f"{FLOW_RUN}.*"),
                match_related=_tag(OURS),
                for_each={"prefect.resource.id"},
                posture=Posture.Proactive,
                within=timedelta(seconds=SILENT_S),
            ),
            actions=[ChangeFlowRunState(state=StateType.CRASHED, message="its process reports nothing any more")],
        ),
    ]


def _resources(pattern: str) -> ResourceSpecification:
    return ResourceSpecification({"prefect.resource.id": pattern})


def _tag(name: str) -> ResourceSpecification:
    return ResourceSpecification({"prefect.resource.id": f"prefect.tag.{name}", "prefect.resource.role": "tag"})


async def make(block: str | None) -> list[str]:
    """Create or update the automations on the server at PREFECT_API_URL, and return their names.

    block: TYPE/NAME of a notification block. UserError if it does not exist.
    """
    async with get_client() as client:
        found = None if block is None else await _block(client, block)

        def tell(subject: str, body: str) -> ActionTypes:
            if found is None:
                return DoNothing()
            return SendNotification(block_document_id=found, subject=subject, body=body)

        made = automations(tell)
        for automation in made:
            await _put(client, automation)
    return [automation.name for automation in made]


async def _block(client: PrefectClient, block: str) -> UUID:
    kind, _, name = block.partition("/")
    try:
        found: UUID = (await client.read_block_document_by_name(name, kind)).id
    except ObjectNotFound as error:
        hint = "make it in Prefect's UI under Blocks"
        allowed = "TYPE/NAME, as slack-webhook/team"
        raise UserError(f"block '{block}'", "is not on the server", allowed=allowed, next_step=hint) from error
    return found


async def _put(client: PrefectClient, automation: AutomationCore) -> None:
    """Create or update the automation of this name; its enabled state is kept."""
    known = await client.read_automations_by_name(automation.name)
    if not known:
        await client.create_automation(automation)
        return
    plain = automation.model_dump(mode="json", exclude={"owner_resource"})  # an update may not name the owner
    whole = AutomationCore.model_validate({**plain, "enabled": known[0].enabled})
    await client.update_automation(known[0].id, whole)


def main(words: list[str]) -> int:
    """Exit code: 0, or 2 with one line."""
    try:
        if len(words) > 1:
            raise UserError("automations", f"got {len(words)} words", allowed="none, or one block as TYPE/NAME")
        for name in asyncio.run(make(*words) if words else make(None)):
            print(name)
    except (UserError, RuntimeError) as error:
        if (line := error if isinstance(error, UserError) else slow_start(error)) is None:
            raise
        print(f"autotailor: {line}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
