"""The programs of a real node, never the machine's, so that it is the same node everywhere.

containerd and its network plugins are built; runc, iptables and the rest are Debian 12's. A runc that is built without
libseccomp, a C library, refuses every pod.
"""

import os
from contextlib import suppress
from pathlib import Path

from testbed import build, debian
from testbed.tools import cache

PACKAGES = ("runc", "busybox-static", "iptables", "iproute2")
LIBRARIES = (
    *("libip4tc2", "libip6tc2", "libxtables12", "libnetfilter-conntrack3", "libnfnetlink0", "libnftnl11", "libmnl0"),
    *("libbpf1", "libelf1", "libbsd0", "libmd0", "libcap2", "libseccomp2"),
)
"""What iptables needs, what `ip` needs, and what runc needs."""


def fetch() -> Path:
    """The folder in which they are as they would be below `/`."""
    root = cache() / "debian"
    debian.unpack([*PACKAGES, *LIBRARIES], root)
    _choose_iptables(root / "usr/sbin")
    return root


def environment() -> dict[str, str]:
    """The variables with which they and their libraries are found. Containers do not inherit them."""
    root = fetch()
    places = [build.built(build.CONTAINERD), root / "usr/sbin", root / "usr/bin", root / "sbin", root / "bin"]
    libraries = next((root / "usr/lib").glob("*-linux-gnu"))
    return {
        "PATH": os.pathsep.join([*map(str, places), os.environ.get("PATH", os.defpath)]),
        "LD_LIBRARY_PATH": os.pathsep.join([str(libraries), str(root / "lib" / libraries.name)]),
        "XTABLES_LIBDIR": str(libraries / "xtables"),
    }


def _choose_iptables(folder: Path) -> None:
    """The package's installation would choose which of two variants is called `iptables`."""
    for family in ("iptables", "ip6tables"):
        for command in ("", "-save", "-restore"):
            with suppress(FileExistsError):
                (folder / f"{family}{command}").symlink_to("xtables-nft-multi")
