"""`autotailor-runtime fleet`: enrols this device, reports its sums, and fetches its assigned bundle."""

import argparse
import hashlib
import json
import os
import platform
import sys
from pathlib import Path

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.fleet import EnrolAsked, FleetMember, ServedSums
from profiling_agents.network.endpoint import read_token
from profiling_agents.sensing.machine import memory_mib

HELP = "A device of a fleet: enrol, and pull the bundle that the registry assigns."
TOKEN_VARIABLE = "AUTOTAILOR_ENROLMENT_TOKEN"
OWN = "own"
RESTORED = "this device's folder is an older copy: it goes on with the registry's numbers; sums of one pull may be lost"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=type(parser))
    enrol = actions.add_parser("enrol", help="enrol at a registry, once")
    enrol.add_argument("url", help="of the registry: https://HOST:PORT")
    enrol.add_argument("--kind", required=True, help="of devices that are compared with each other")
    enrol.add_argument("--name", default=platform.node(), help="for people (default: the host's name)")
    text = f"file with a token to enrol with, readable by you only (default: {TOKEN_VARIABLE})"
    enrol.add_argument("--token-file", type=Path, metavar="F", help=text)
    enrol.add_argument(
        "--ca-file", type=Path, metavar="F", help="certificate (PEM) that the registry is checked against"
    )
    pull = actions.add_parser("pull", help="tell sums over requests, and go over to the bundle that is assigned")
    pull.add_argument(
        "--sums",
        type=Path,
        metavar="F",
        help="JSON of the sums since the last time, and of the bundle that answered (default: no requests)",
    )
    pull.add_argument("--key-file", type=Path, metavar="F", help="secret with which a bundle must be signed")
    for action in (enrol, pull):
        action.add_argument("--folder", type=Path, required=True, metavar="DIR", help="of this device in its fleet")


def run(arguments: argparse.Namespace) -> None:
    """Enrol, or pull and print the folder of the bundle that should serve. AdaptiveError, AgentError: one line."""
    if arguments.action == "enrol":
        token = read_token(arguments.token_file, TOKEN_VARIABLE)
        if token is None:
            raise AdaptiveError("fleet enrol", "there is no token", next_step="give --token-file")
        asked = EnrolAsked(name=arguments.name[:256] or "device", kind=arguments.kind[:256], fingerprint=fingerprint())
        member = FleetMember.enrol(arguments.folder, arguments.url, token, asked, arguments.ca_file)
        print(f"device {member.state.device}")
        return
    member = FleetMember.open(arguments.folder)
    served = None if arguments.sums is None else ServedSums.from_file(arguments.sums)
    member.pull(served, arguments.key_file)
    if member.restored:
        print(RESTORED, file=sys.stderr)
    print(OWN if member.bundle is None else member.bundle)


def fingerprint() -> str:
    """sha256 of the system properties that make latencies of this device comparable."""
    described = [platform.system(), platform.machine(), platform.processor(), os.cpu_count(), memory_mib()]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()
