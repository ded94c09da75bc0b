"""Packages of Debian 12, fetched with the machine's apt and unpacked into the cache folder.

Nothing is installed: no service starts, no file of the machine changes, and no root is needed. apt runs with its own
lists and its own single source, made from the mirror that the machine already uses. Signatures are checked as always.
Nothing that is unpacked is run, so packages for another architecture than the machine's are no different.
"""

import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

from testbed.tools import Missing, cache, locked, say

SUITE = "bookworm"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def lacking() -> list[str]:
    """Everything that keeps this machine from fetching packages."""
    missing = [f"the command {command}" for command in ("apt-get", "dpkg-deb") if shutil.which(command) is None]
    if not KEYRING.exists():
        missing.append(f"Debian's signing keys ({KEYRING})")
    if not mirror():
        missing.append("an apt source whose address ends in /debian (a mirror of Debian)")
    return missing


def unpack(packages: Collection[str], root: Path, architecture: str = "") -> None:
    """Puts these packages' files below `root`, as they would be below `/`. Without an architecture: the machine's."""

    def wanted() -> list[str]:
        return [package for package in packages if not (root / ".unpacked" / package).exists()]

    if wanted():
        with locked("debian"):
            if still_wanted := wanted():
                say(f"fetching Debian packages: {' '.join(still_wanted)}")
                _unpack(still_wanted, root, architecture or machine_architecture())


def machine_architecture() -> str:
    """Debian's word for it, such as amd64."""
    return subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()


def _unpack(packages: Collection[str], root: Path, architecture: str) -> None:
    downloads = root / ".downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    (root / ".unpacked").mkdir(exist_ok=True)
    _apt("download", *packages, at=downloads, architecture=architecture)
    for package in packages:
        archive = next(downloads.glob(f"{package}_*.deb"))
        subprocess.run(["dpkg-deb", "--extract", archive, root], check=True)
        # Written last: a package whose unpacking was cut short is unpacked again. What it is, is kept for scanners.
        fields = subprocess.check_output(["dpkg-deb", "--field", archive], text=True)
        (root / ".unpacked" / package).write_text(fields)
        archive.unlink()


def _apt(*command: str, at: Path, architecture: str) -> None:
    if missing := lacking():
        raise Missing("Debian packages cannot be fetched; missing: " + "; ".join(missing))
    state = cache() / "apt" if architecture == machine_architecture() else cache() / f"apt-{architecture}"
    (state / "lists/partial").mkdir(parents=True, exist_ok=True)
    (state / "archives/partial").mkdir(parents=True, exist_ok=True)
    (state / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} {SUITE} main\n")
    (state / "installed").touch()  # nothing: what the machine has may be newer than what its mirror has
    apt = ["apt-get", "--quiet=2", "--option", "APT::Sandbox::User=root"]
    for option, value in {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "Dir::Etc::SourceList": state / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": state / "lists",
        "Dir::State::Status": state / "installed",
        "Dir::Cache": state,
        "Dir::Cache::Archives": state / "archives",
    }.items():
        apt += ["--option", f"{option}={value}"]
    for step in (["update"], list(command)):
        outcome = subprocess.run([*apt, *step], cwd=at, capture_output=True, text=True, check=False)
        if outcome.returncode != 0:
            raise Missing(f"apt-get {' '.join(step)} failed:\n{outcome.stderr.strip()}")


def mirror(apt: Path = Path("/etc/apt")) -> str:
    """The address that the machine's own apt uses for Debian, empty if it uses none."""
    for file in [apt / "sources.list", *sorted(apt.glob("sources.list.d/*"))]:
        lines = file.read_text().splitlines() if file.is_file() else []
        for line in lines:
            if found := re.match(r"(?:deb|URIs:)\s(?:.*\s)?(https?://\S+/debian/?)(?:\s|$)", line):
                return found[1]
    return ""
