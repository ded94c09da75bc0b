"""Linux namespaces for one real node: its own processes, network, mounts and file changes.

Hardly anything has to be cleaned up, because hardly anything of the machine is changed: interfaces, iptables rules,
mounts, containers and files exist only inside, and the kernel drops them with the first process. That process is `cat`
on a pipe that we hold: it ends when we end, however we end. What the machine itself sees is one virtual cable with two
routes, which vanish with its other end, and a branch of the control groups, which a waiting shell removes at the end.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed import programs
from testbed.processes import Failed, tail
from testbed.runs import Run
from testbed.slots import Slot
from testbed.tools import Missing

COMMANDS = ("unshare", "nsenter", "setpriv", "mount", "bash", "env", "cat", "find")
CGROUPS = Path("/sys/fs/cgroup")
GOING_SECONDS = 30

# Outside. Version 1 of the control groups has one hierarchy for each controller, version 2 has one for all.
# A group can go only when its last process has, which takes the kernel a moment.
HOLD = r"""
set -u
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then groups=(/sys/fs/cgroup); else groups=(/sys/fs/cgroup/*/); fi
groups=("${groups[@]/%/\/$2}")
mkdir -p "${groups[@]}" || exit
unshare --mount --net --pid --fork --kill-child --mount-proc bash -c "$3" enter "$1"
for try in {1..100}; do
    find "${groups[@]}" -depth -type d -exec rmdir {} + 2>/dev/null
    [ -z "$(ls -d "${groups[@]}" 2>/dev/null)" ] && exit 0
    sleep 0.05
done
echo "control groups are left: $2" >&2
"""

# Inside: /etc and /var are copies on write, /run is new; a kubelet finds everything where it lies on any node.
# containerd layers images with overlayfs, which cannot lie on another overlayfs, hence its own tmpfs.
# Nobody answers questions about names inside, and an empty resolv.conf says so at once.
# The kubelet writes some settings of the kernel that are not separate per namespace: it writes to copies.
ENTER = """
set -eu
mount -t tmpfs testbed "$1"
for folder in etc var; do
    mkdir -p "$1/$folder/changes" "$1/$folder/work"
    mount -t overlay testbed -o "lowerdir=/$folder,upperdir=$1/$folder/changes,workdir=$1/$folder/work" "/$folder"
done
mount -t tmpfs testbed /run
mkdir -p /run/netns /run/lock
for folder in /var/lib/containerd /var/lib/kubelet; do
    mkdir -p "$folder"
    mount -t tmpfs testbed "$folder"
done
mount --make-rshared /
rm -f /etc/resolv.conf && touch /etc/resolv.conf
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
        kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
    [ -e "/proc/sys/$setting" ] || continue
    mkdir -p "$1/sys/${setting%/*}"
    cat "/proc/sys/$setting" > "$1/sys/$setting"
    mount --bind "$1/sys/$setting" "/proc/sys/$setting"
done
echo 1 > /proc/sys/net/ipv4/ip_forward
echo ready
exec env --ignore-signal=CHLD cat
"""


@dataclass(frozen=True)
class Namespace:
    """The inside. `pid` is its first process, as the outside sees it."""

    pid: int
    slot: Slot

    @property
    def cgroup(self) -> str:
        """The branch of the control groups below which its containers are."""
        return f"/{_branch(self.slot)}"

    @property
    def cgroups(self) -> Path:
        """Where that branch is, in one hierarchy if there are several."""
        is_one = (CGROUPS / "cgroup.controllers").exists()
        return (CGROUPS if is_one else CGROUPS / "memory") / _branch(self.slot)

    def inside(self, *command: str | Path) -> list[str]:
        """The command that runs one of the node's programs inside. It ends with the process that started it."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--"]
        enter += ["setpriv", "--pdeathsig", "KILL", "env", *(f"{k}={v}" for k, v in programs.environment().items())]
        return [*enter, *map(str, command)]

    def path(self, path: str) -> Path:
        """How the outside reaches a file or socket that the inside knows by this path."""
        return Path(f"/proc/{self.pid}/root") / path.removeprefix("/")


def lacking() -> list[str]:
    """Everything that keeps this machine from running a real node."""
    missing = [f"the command {command}" for command in COMMANDS if shutil.which(command) is None]
    if os.geteuid() != 0:
        missing.append("root (a real node makes namespaces, mounts and control groups)")
    if "overlay" not in Path("/proc/filesystems").read_text():
        missing.append("the kernel's file system overlay (try: modprobe overlay)")
    if not CGROUPS.is_dir():
        missing.append(f"control groups ({CGROUPS})")
    return missing


@contextmanager
def namespace(run: Run) -> Iterator[Namespace]:
    if missing := lacking():
        raise Missing("a real node cannot run here; missing: " + "; ".join(missing))
    scratch = run.data / "namespace"
    scratch.mkdir()
    command = ["bash", "-c", HOLD, "hold", str(scratch), _branch(run.slot), ENTER]
    log = run.log("namespace")
    with log.open("ab") as output:
        holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, start_new_session=True
        )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        if holder.stdout.readline() != b"ready\n":
            raise Failed(f"the namespace was not made\n{tail(log)}")
        inner = Namespace(_only_child(_only_child(holder.pid)), run.slot)
        _connect(inner)
        try:
            yield inner
        finally:
            # The kernel would do it, a moment after the namespace is gone; whoever looks now should see it gone.
            _ip("link", "delete", _cable(run.slot))
    finally:
        holder.stdin.close()
        holder.wait(GOING_SECONDS)
        holder.stdout.close()


def _connect(inner: Namespace) -> None:
    """A network link between machine and node, and the machine's route to pods and Services over it."""
    slot, cable = inner.slot, _cable(inner.slot)
    _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(inner.pid))
    _ip("address", "add", f"{slot.machine_address}/30", "dev", cable)
    _ip("link", "set", cable, "up")
    _ip("link", "set", "lo", "up", at=inner)
    _ip("address", "add", f"{slot.node_address}/30", "dev", "eth0", at=inner)
    _ip("link", "set", "eth0", "up", at=inner)
    _ip("route", "add", "default", "via", str(slot.machine_address), at=inner)
    # A kubelet asks there which cloud it is in, and waits many seconds for an answer; so it learns at once: none.
    _ip("route", "add", "unreachable", "169.254.0.0/16", at=inner)
    for network in (slot.pods, slot.services):
        _ip("route", "add", str(network), "via", str(slot.node_address))


def _ip(*arguments: str, at: Namespace | None = None) -> None:
    command = at.inside("ip", *arguments) if at else ["ip", *arguments]
    outcome = subprocess.run(command, env=programs.environment(), capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        raise Failed(f"ip {' '.join(arguments)}: {outcome.stderr.strip()}")


def _cable(slot: Slot) -> str:
    return f"carrel{slot.number}"


def _branch(slot: Slot) -> str:
    return f"carrel-testbed-{slot.number}"


def _only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
