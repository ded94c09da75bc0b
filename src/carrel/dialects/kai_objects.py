"""KAI's PodGroup, which Carrel reads where KAI is installed.

spec.minMember     how many pods the gang needs
spec.minSubGroup   how many of its sub groups it needs instead; without it, all of them
spec.subGroups     name, minMember or minSubGroup, parent: a sub group may consist of others
"""

from collections.abc import Mapping, Sequence

import msgspec

from carrel.kubernetes.objects.kinds import Object, ObjectPart
from carrel.kubernetes.objects.pods import subject
from carrel.kubernetes.objects.resources import Resource

MOST_TOLD = 3
MOST_LEVELS = 20
LONGEST = 400
"""Of a reason, which is told for every node: whoever may write a PodGroup chooses the names and how many there are."""


class SubGroup(ObjectPart):
    name: str = ""
    min_member: int = 0
    min_sub_group: int | None = None
    parent: str | None = None
    """None, or empty: it is a part of the PodGroup itself."""


class PodGroupSpec(ObjectPart):
    min_member: int = 0
    min_sub_group: int | None = None
    sub_groups: tuple[SubGroup, ...] = ()


class PodGroup(Object):
    """KAI's word for a gang. The annotation of its pods names it."""

    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)


POD_GROUPS = Resource(PodGroup, "scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup")


def why_incomplete(group: PodGroup, pods: Mapping[str, int]) -> str:
    """Why a PodGroup with sub groups cannot be placed yet; empty if all that it needs is there. `pods`: how many there
    are of each sub group."""
    where, names = subject(group.metadata, "PodGroup"), [each.name for each in group.spec.sub_groups]
    if len({*names, ""}) <= len(names):  # to follow those could take for ever
        return f"{where}: two of its sub groups have the same name, or one has none (spec.subGroups)"
    below: dict[str, list[SubGroup]] = {}
    for each in group.spec.sub_groups:
        below.setdefault(each.parent or "", []).append(each)
    found, level, levels = set[str](), below.get("", []), 0
    while level:
        found.update(part.name for part in level)
        level, levels = [each for part in level for each in below.get(part.name, ())], levels + 1

    def gap(needed: int | None, parts: Sequence[SubGroup]) -> str:
        gaps = [why for part in parts if (why := gap_of(part))]
        wanted, ready = len(parts) if needed is None else needed, len(parts) - len(gaps)
        if ready >= wanted:
            return ""
        told = "; ".join(gaps[:MOST_TOLD])[:LONGEST]
        return f"it needs {wanted} of {len(parts)} sub groups, and {ready} are complete: {told}"

    def gap_of(part: SubGroup) -> str:
        if part.name in below:
            why = gap(part.min_sub_group, below[part.name])
            return f"{part.name}: {why}" if why else ""
        here, wanted = pods.get(part.name, 0), max(1, part.min_member)
        return f"{part.name} has {here} of {wanted} pods" if here < wanted else ""

    if lost := sorted(set(names) - found):
        why = f"the parent of its sub group {lost[0]} does not exist, or is a part of it (spec.subGroups)"
    elif levels > MOST_LEVELS:
        why = f"its sub groups have {levels} levels, more than {MOST_LEVELS} (spec.subGroups)"
    else:
        why = gap(group.spec.min_sub_group, below.get("", []))
    text = f"{where}: {why}" if why else ""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
