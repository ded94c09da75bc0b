"""The configuration in the chart: its part of the schema of the values, and its block in values.yaml.

Both are written from `carrel.configuration.schema`. The block has the fields that the chart's own templates read, so
that these find a value, and those that most labs decide; all others may be written there too.
"""

import textwrap
from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, cast, get_origin, get_type_hints

import yaml

from carrel.configuration.fields import INFO, Info, key_of
from carrel.configuration.moved import BY_VARIABLE
from carrel.configuration.reading import OFF, Leaf, every_field
from carrel.configuration.schema import Configuration

IN_VALUES = (
    "lab.timezone",
    "memory.unit",
    "nodes.plugin",
    "nodes.deviceList",
    "nodes.hideGpusFrom",
    "pods.trustedUsers",
    "pods.longestGrace",
    "hubs.accounts",
    "hubs.usernameDomain",
    "hubs.users",
    "tiers.whenFull",
    "tiers.revocationGrace",
    "resourceClaims.enabled",
    "resourceClaims.driver",
    "bookings.publicUrl",
    "bookings.rules.minDuration",
    "bookings.rules.maxDuration",
    "bookings.rules.cooldown",
    "bookings.rules.maxGpus",
    "bookings.signIn.oidc.issuer",
    "bookings.signIn.oidc.clientId",
    "bookings.signIn.hub.url",
    "bookings.roles.labAdminGroups",
    "bookings.roles.platformAdmins",
)
MOVED_VALUES = {
    "mode": "config.nodes.plugin",
    "memoryUnit": "config.memory.unit",
    "sharedClaimsPerGpu": "config.dialects.sharedClaimsPerGpu",
    "opportunisticGpus": "config.tiers.opportunisticGpus",
    "revokeOlderPods": "config.tiers.revokeOlderPods",
    "whenFull": "config.tiers.whenFull",
    "longestGrace": "config.pods.longestGrace",
    "runtimeClass": "config.nodes.runtimeClass",
    "hideGpusFrom": "config.nodes.hideGpusFrom",
    "deviceList": "config.nodes.deviceList",
    "cudaDevices": "config.dialects.cudaDevices",
    "spawners": "config.hubs.accounts",
    "usernameDomain": "config.hubs.usernameDomain",
    "hubUsers": "config.hubs.users",
    "trustedUsers": "config.pods.trustedUsers",
    "dra.enabled": "config.resourceClaims.enabled",
    "dra.driver": "config.resourceClaims.driver",
    "scheduler.placement": "config.scheduling.placement",
    "controller.revocationGrace": "config.tiers.revocationGrace",
    "controller.atEnd": "config.tiers.atEnd",
    "agent.memoryResource": "config.memory.resource",
    "booking.zone": "config.lab.timezone",
    "booking.publicUrl": "config.bookings.publicUrl",
    "booking.basePath": "config.bookings.publicUrl, as its path",
    "booking.oidc": "config.bookings.signIn.oidc, the name of its Secret to booking.oidcSecret",
    "booking.hub": "config.bookings.signIn.hub, the name of its Secret to booking.hubSecret",
    "booking.roles": "config.bookings.roles",
    "booking.trustedProxies": "config.bookings.signIn.trustedProxies",
}
"""Values of the chart before there was a configuration: who still gives one is told where it went."""
BEGIN, END = "# config: written by `make reference`", "# end of config"
WIDTH = 116
VARIABLES = {"propertyNames": {"pattern": "^[A-Z][A-Z0-9_]*$"}, "additionalProperties": {"type": "string"}}


def schema(section: type = Configuration) -> dict[str, Any]:
    """The JSON schema of a section: what is not in it is refused."""
    hints = get_type_hints(section)
    properties = {}
    for each in fields(section):
        hint = hints[each.name]
        properties[key_of(each.name)] = (
            schema(cast("type", hint)) if is_dataclass(hint) else _field(hint, each.metadata[INFO])
        )
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _field(hint: Any, info: Info) -> dict[str, Any]:
    about = {"description": info.help}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": {"type": "string", "minLength": 1}, **about}
    if get_origin(hint) is not None:
        return {"type": "object", "additionalProperties": {"type": "string"}, **about}
    if issubclass(hint, Enum):
        words = [each.value for each in hint]
        if OFF in words:  # what YAML makes of it without quotes
            return {"type": ["string", "boolean"], "enum": [*words, False], **about}
        return {"type": "string", "enum": words, **about}
    if hint is timedelta:
        return {"type": "string", "pattern": "^[0-9]{1,9}[dhms]$", **about}
    if hint is int:
        limits = {"minimum": info.least, "maximum": info.most}
        return {"type": "integer", **{key: each for key, each in limits.items() if each is not None}, **about}
    return {"type": {bool: "boolean", str: "string"}[hint], **about}


def complete(values: dict[str, Any]) -> None:
    """Puts what is generated into the schema of the values: the configuration, and what moved into it."""
    values["properties"]["config"] = schema()
    moved = sorted((name, f"config.{each.field}" if each.field else NOWHERE) for name, each in BY_VARIABLE.items())
    variables = {name: _moved(where) for name, where in moved}
    values["definitions"] = {"env": {"type": "object", "properties": variables, **VARIABLES}}
    for each in values["properties"].values():
        if "env" in each.get("properties", {}):
            each["properties"]["env"] = {"$ref": "#/definitions/env"}
    for path, where in MOVED_VALUES.items():
        *sections, key = path.split(".")
        there = values["properties"]
        for section in sections:
            there = there[section]["properties"]
        there[key] = _moved(where)


NOWHERE = "nowhere: leave it out"


def _moved(where: str) -> dict[str, str]:
    """Whatever is given, helm refuses it with this sentence."""
    return {"const": f"moved to {where}"}


def is_moved(of: dict[str, Any]) -> bool:
    return str(of.get("const", "")).startswith("moved to ")


def block() -> str:
    """`config:` in values.yaml, with the meaning of each field above it."""
    shown = {leaf.path: leaf for leaf in every_field(Configuration()) if leaf.path in IN_VALUES}
    assert set(shown) == set(IN_VALUES)
    lines, there = ["config:"], list[str]()
    for path, leaf in shown.items():
        *sections, key = path.split(".")
        kept = next((i for i, pair in enumerate(zip(there, sections, strict=False)) if pair[0] != pair[1]), None)
        kept = min(len(there), len(sections)) if kept is None else kept
        lines += [f"{'  ' * (depth + 1)}{sections[depth]}:" for depth in range(kept, len(sections))]
        there = sections
        indent = "  " * (len(sections) + 1)
        lines += [f"{indent}# {line}" for line in textwrap.wrap(meaning(leaf), WIDTH - len(indent))]
        lines.append(f"{indent}{key}: {_written(leaf.value)}")
    return "\n".join(lines)


def _written(value: object) -> str:
    return '""' if value == "" else yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()


def meaning(leaf: Leaf) -> str:
    return f"{leaf.info.help}{f' Example: {leaf.info.example}' if leaf.info.example else ''}"
