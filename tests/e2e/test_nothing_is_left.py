"""However the tests end while a pod runs on a real node: the machine is as it was before."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed import programs
from tests.e2e.pods import eventually

RUNS_UNTIL_ENDED = Path(__file__).with_name("runs_until_ended.py")
SETTINGS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
PLACES = ("/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/log/pods", "/run/containerd", "/etc/cni")

CGROUPS = Path("/sys/fs/cgroup")
OURS = r"\bcarrel(?:-testbed-)?(\d+)\b"
ENDINGS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM, "killed": signal.SIGKILL}

Machine = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Ended:
    """A pytest that was ended while a pod ran on its node."""

    slot: str
    folder: str
    before: Machine
    during: Machine


@pytest.fixture(scope="module")
def ended() -> Iterator[dict[str, Ended]]:
    """All at the same time: three nodes on one machine do not disturb each other either."""
    before = machine()
    # A shell lets its background jobs ignore Ctrl-C, and whatever they start inherits that.
    command = ["env", "--default-signal=INT"]
    command += [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", str(RUNS_UNTIL_ENDED)]
    with ExitStack() as until:
        tests = {how: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for how in ENDINGS}
        for program in tests.values():
            until.callback(program.kill)
        yield {how: _end(program, ENDINGS[how], before) for how, program in tests.items()}


def _end(program: subprocess.Popen[bytes], ending: signal.Signals, before: Machine) -> Ended:
    assert program.stdout is not None
    said = []
    for line in program.stdout:
        said.append(line.decode())
        if found := re.search(r"running in slot (\d+) folder (\S+)", said[-1]):
            during = machine()
            program.send_signal(ending)
            program.communicate(timeout=300)
            return Ended(found[1], found[2], before, during)
    raise AssertionError("".join(said))


@pytest.mark.parametrize("how", ENDINGS)
def test_nothing_is_left_on_the_machine(ended: dict[str, Ended], how: str) -> None:
    run = ended[how]

    def left() -> dict[str, list[str]]:
        found = new_lines(run.before, machine(), run.slot) | {"processes": processes(run.slot, run.folder)}
        return {part: lines for part, lines in found.items() if lines}

    assert new_lines(run.before, run.during, run.slot)["interfaces"], "this test must see what a node changes"
    if how == "killed":
        # A killed process cleans up nothing; the kernel and a waiting shell do, a moment later.
        eventually(lambda: not left())
    assert left() == {}


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_only_the_logs_of_the_run_stay(ended: dict[str, Ended], how: str) -> None:
    assert [entry.name for entry in Path(ended[how].folder).iterdir()] == ["logs"]


def machine() -> Machine:
    """What a node might change on a machine, as lines."""
    rules = lines("iptables-save")
    return {
        "interfaces": lines("ip", "-oneline", "-brief", "link"),
        "routes": lines("ip", "route"),
        "rules": frozenset(line for line in rules if not line.startswith("#")),
        "mounts": frozenset(Path("/proc/self/mounts").read_text().splitlines()),
        "control groups": frozenset(str(group) for level in ("", "*/") for group in CGROUPS.glob(f"{level}carrel-*")),
        "hosts": frozenset(Path("/etc/hosts").read_text().splitlines()),
        "settings": frozenset(f"{name}={Path('/proc/sys', name).read_text()}" for name in SETTINGS),
        "places": frozenset(place for place in PLACES if Path(place).exists()),
    }


def new_lines(before: Machine, after: Machine, slot: str) -> dict[str, list[str]]:
    """Without those of test beds that other tests use at the same time: their names have another number."""
    return {
        part: [line for line in sorted(after[part] - before[part]) if set(re.findall(OURS, line)) <= {slot}]
        for part in before
    }


def processes(slot: str, folder: str) -> list[str]:
    """Those that were started for the run, and those in containers of its node."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            groups = (process / "cgroup").read_text()
        except OSError:
            continue
        if folder in command or f"carrel-testbed-{slot}/" in groups:
            found.append(command)
    return found


def lines(*command: str) -> frozenset[str]:
    environment = programs.environment()
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return frozenset(line.strip() for line in shown.stdout.splitlines())
