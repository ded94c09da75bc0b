"""KAI's PodGroup, which Carrel reads where KAI is installed."""

import msgspec

from carrel.kubernetes.objects.kinds import Object, ObjectPart
from carrel.kubernetes.objects.resources import Resource


class PodGroupSpec(ObjectPart):
    min_member: int = 0


class PodGroup(Object):
    """KAI's word for a gang. The annotation of its pods names it."""

    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)


POD_GROUPS = Resource(PodGroup, "scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup")
