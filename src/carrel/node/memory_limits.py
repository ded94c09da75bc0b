"""Whether the driver can limit the GPU memory of this node's containers, as the agent reports it.

NVIDIA's driver does it from release 615 on, for control groups of version 2. NVIDIA's container toolkit asks it to,
before the first process of a container starts; with an older driver, or version 1, it lets no container start that has
a limit. So a node that has not said that it can gets no pods with limits. Whether the toolkit is new enough (1.20) an
agent cannot see from its own container: with an older one no limit is set, which `limit_check` finds out. MIG slices of
the node do not matter: no pod with a limit gets one (`Request.avoids_slices`).
"""

from collections.abc import Mapping

from carrel.ids import GpuUuid
from carrel.node.interfaces import GpuDetails

FIRST_DRIVER = 615


def why_no_limits(gpus: Mapping[GpuUuid, GpuDetails], *, cgroups_v2: bool | None) -> str:
    """Empty: it can. `cgroups_v2`: None if control groups cannot be seen."""
    for release in sorted({each.driver_version for each in gpus.values()}):
        if why := _why_not_by(release):
            return why
    if cgroups_v2 is None:
        return "its agent cannot see control groups (--cgroups)"
    return "" if cgroups_v2 else "its control groups are of version 1, and the driver needs version 2"


def _why_not_by(release: str) -> str:
    if not release:
        return "its driver does not say which release it is"
    major = release.split(".")[0]
    if not major.isascii() or not major.isdecimal():
        return f"its driver is of release {release[:40]!r}, which Carrel does not understand"
    return f"its driver {release[:40]} is older than {FIRST_DRIVER}" if int(major) < FIRST_DRIVER else ""
