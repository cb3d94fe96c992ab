"""Names of earlier versions, in one table: a name that has a new one works for one version; a name that has gone is refused.

Both cases are one line for the user.
"""

import sys
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from typing import Any, Literal, NamedTuple

from tasks.base.errors import UserError

EarlierKind = Literal["command", "option", "choice", "kind", "network"]
"""A choice is a group's option: data=NAME. A kind is one of data."""


class EarlierName(NamedTuple):
    """A name of earlier versions. since: the first version without it. now: the new name, or else the advice."""

    kind: EarlierKind
    name: str
    since: str
    now: str = ""
    advice: str = ""


EARLIER_NAMES = (
    *(
        EarlierName("command", name, "0.17", advice=f"docs/operations.md#{page} says how it is done without it")
        for name, page in {"backup": "backups", "restore": "the-way-back", "health": "health"}.items()
    ),
    EarlierName("command", "adapt", "0.18", now="retarget"),
    EarlierName("option", "export.placed", "0.18", now="export.offload"),
    EarlierName("option", "export.together", "0.18", now="export.shared_bundle"),
    EarlierName("option", "engine", "0.18", now="runtime_options"),
    EarlierName("option", "device.DEVICE.engine", "0.18", now="device.DEVICE.runtime_options"),
    EarlierName("option", "policy.rules", "0.18", now="runtime.rules"),
    EarlierName("option", "policy", "0.18", now="exits"),
    EarlierName("choice", "policy=battery", "0.18", now="runtime=battery"),
    EarlierName("choice", "data=seen_and_felt", "0.18", now="data=image_and_motion"),
    EarlierName("choice", "preset=seen_and_felt", "0.18", now="preset=image_and_motion"),
    EarlierName("kind", "seen_and_felt", "0.18", now="image_and_motion"),
    EarlierName(
        "option",
        "search.placement",
        "0.18",
        advice="a bundle with SubNets over devices is made by export.bundle=true export.offload=true "
        "partition.devices=[COORDINATOR,DEVICE]",
    ),
    EarlierName(
        "option", "search.partition", "0.18", advice="links and limits of SubNets over devices are options of partition"
    ),
    *(
        EarlierName("network", f"conf.networks.{name}", "0.18", now=f"conf.networks.{now}")
        for name, now in {
            "deeplab:network": "segmentation:deeplab",
            "lraspp:network": "segmentation:lraspp",
            "pyramids:network": "segmentation:pyramid",
            "super_resolution:network": "restoration:super_resolution",
            "unet:network": "restoration:unet",
            "mobilenetv3:network": "once_for_all:mobilenetv3",
            "proxyless:network": "once_for_all:proxyless",
        }.items()
    ),
)


def gone(kind: EarlierKind, name: str) -> UserError | None:
    """The line for a name that has gone, or for an option below such a name; None for any other name."""
    for one in EARLIER_NAMES:
        if one.kind == kind and one.advice and f"{name}.".startswith(f"{one.name}."):
            return UserError(f"{kind} '{name}'", "has gone", next_step=one.advice)
    return None


@cache
def name_now(kind: EarlierKind, option: str, name: str) -> str:
    """The new name, with one line about it per process; the name itself if it is no earlier name. option: has the name."""
    for one in EARLIER_NAMES:
        if one.kind == kind and one.now and one.name == name:
            line = f"autotailor: {option} '{name}' is now '{one.now}'; the next version refuses the old name"
            print(line, file=sys.stderr)
            return one.now
    return name


def override_now(text: str) -> str:
    """An override of the command line with the names of this version."""
    key, sign, value = text.partition("=")
    bare = key.lstrip("+~")
    choice = name_now("choice", "option", f"{bare}={value}")
    if choice != f"{bare}={value}":
        return key.removesuffix(bare) + choice
    path = bare.split(".")
    for end in range(len(path), 0, -1):
        name = ".".join(path[:end])
        if (now := name_now("option", "option", name)) != name:
            return key.removesuffix(bare) + ".".join([now, *path[end:]]) + sign + value
    return text


def earlier_groups(group: str) -> tuple[str, ...]:
    """Earlier names of a group of options."""
    return tuple(one.name for one in EARLIER_NAMES if one.kind == "option" and one.now == group)


def config_now(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a file with the names of this version; those of a group that has a new name join the new one's."""
    whole = deepcopy(dict(config))
    for one in EARLIER_NAMES:
        *above, key = one.name.split(".")
        options = whole
        for name in above:
            options = options[name] if isinstance(options.get(name), dict) else {}
        if one.kind != "option" or not one.now or key not in options:
            continue
        value = options.pop(key)
        if above and not options:
            del whole[above[0]]
        *above, key = name_now("option", "option", one.name).split(".")
        options = whole
        for name in above:
            options[name] = options[name] if isinstance(options.get(name), dict) else {}
            options = options[name]
        present = options.get(key)
        options[key] = present | value if isinstance(present, dict) and isinstance(value, dict) else value
    return whole


def default_now(entry: Any) -> Any:
    """An entry of a file's list of defaults, as {"override /data": "digits"}, with the names of this version."""
    if not isinstance(entry, Mapping) or len(entry) != 1:
        return entry
    ((key, value),) = entry.items()
    before, sign, group = str(key).rpartition("/")
    now, _, choice = override_now(f"{group}={value}").partition("=")
    return {f"{before}{sign}{now}": value if choice == str(value) else choice}
