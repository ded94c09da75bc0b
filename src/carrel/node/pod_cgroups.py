"""Which pods have running processes on this machine, from the control groups that the kubelet makes for them.

The API server's word is not enough: a pod that is deleted by force is gone there at once, and the kubelet's own lists
forget it too, while its containers run on, for as long as the pod's grace period says. Its control group is named after
its uid, and exists until the kubelet has ended it:

    kubepods/burstable/pod<uid>                                                the driver `cgroupfs`
    kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice  the driver `systemd`

In a container these folders are there only if the host's are mounted. Static pods have no uid of this form.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from carrel.ids import PodUid

_UID = "[-_]".join(f"[0-9a-f]{{{length}}}" for length in (8, 4, 4, 4, 12))
_POD = re.compile(f"pod({_UID})(?:\\.slice)?$")
_ID = re.compile(r"[0-9a-f]{64}")
"""Of a container: `cri-containerd-<id>.scope`, `crio-<id>.scope`, `docker-<id>.scope` or the id alone."""
_HIERARCHIES = ("", "memory", "cpu", "systemd")
"""Version 1 has one for each resource; the first that the kubelet uses is enough."""
_ABOVE_PODS = ("kube", "burstable", "besteffort")
_MOST_LEVELS = 4


class PodCgroups:
    def __init__(self, root: Path) -> None:
        self._root = root

    def are_version_2(self) -> bool | None:
        """None: they cannot be seen."""
        if not _names(self._root):
            return None
        return (self._root / "cgroup.controllers").exists()

    def containers_of(self, uid: PodUid) -> dict[str, str]:
        """The ids of the pod's containers → their control groups, as full paths; version 2 only."""
        folders = [folder for each, folder in _pod_folders(self._root, _MOST_LEVELS) if each == uid]
        return {match[0]: str(each / name) for each in folders for name in _names(each) if (match := _ID.search(name))}

    def running(self) -> frozenset[PodUid] | None:
        """The uids of the pods that have processes. None: the kubelet's control groups cannot be seen."""
        for hierarchy in _HIERARCHIES:
            folders = list(_pod_folders(self._root / hierarchy, _MOST_LEVELS))
            if folders:
                return frozenset(uid for uid, folder in folders if _has_processes(folder))
            if any("kubepods" in name for name in _names(self._root / hierarchy)):
                return frozenset()
        return None


def _pod_folders(folder: Path, levels: int) -> Iterator[tuple[PodUid, Path]]:
    for name in _names(folder):
        if match := _POD.search(name):
            yield PodUid(match[1].replace("_", "-")), folder / name
        elif levels > 1 and any(word in name for word in _ABOVE_PODS):
            yield from _pod_folders(folder / name, levels - 1)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []  # it is gone, or there is none


def _has_processes(folder: Path) -> bool:
    for parent, _, files in os.walk(folder):
        if "cgroup.procs" in files:
            try:
                if (Path(parent) / "cgroup.procs").read_text().strip():
                    return True
            except FileNotFoundError:
                continue  # it has just ended
            except OSError:
                return True  # threads of a process elsewhere in the group: it is in use
    return False
