"""`python -m testbed`: prepare, up, down, status, pin."""

import argparse
import sys
from collections.abc import Sequence

from testbed import build, clients, debian, namespace, programs, prometheus, session
from testbed.pin import pin
from testbed.processes import Failed
from testbed.tools import Missing, say
from tools.image import root_folders


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m testbed", description="A real Kubernetes on this machine, for tests.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare", help="fetch and build all that is missing; say all that this machine lacks")
    for name, text in {"up": "start a cluster with simulated GPUs", "keep": "the same, in the foreground"}.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("--nodes", type=int, default=3, help="how many hollow GPU nodes (default 3)")
    commands.add_parser("down", help="end that cluster and everything it started")
    commands.add_parser("status", help="say whether that cluster runs, and where its kubeconfig is")
    pinning = commands.add_parser("pin", help="pin another release of Kubernetes, so that it can be built and tested")
    pinning.add_argument("release", help="such as 1.36.4")
    arguments = parser.parse_args(words)
    try:
        return _run(arguments)
    except (Missing, Failed) as problem:
        print(f"python -m testbed {arguments.command}: {problem}", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "prepare":
            prepare()
        case "up":
            print(session.next_steps(session.up(arguments.nodes)), end="")
        case "keep":
            session.keep(arguments.nodes)
        case "down":
            print("The test bed is down." if session.down() else "No test bed was up.")
        case "status":
            running = session.status()
            print(session.next_steps(running) if running else "No test bed is up. Start one: python -m testbed up")
            return 0 if running else 1
        case "pin":
            print(f"Pinned in {pin(arguments.release)}. To test on it: make e2e KUBERNETES={arguments.release}")
    return 0


def prepare() -> None:
    """Everything that the end-to-end tests need, so that they themselves fetch nothing."""
    missing = namespace.lacking() + debian.lacking()
    if missing:
        lines = "".join(f"\n  - {thing}" for thing in missing)
        raise Missing(f"the end-to-end tests cannot run on this machine. Missing:{lines}")
    build.prepare()
    programs.fetch()
    clients.kubectl()
    prometheus.promtool()
    root_folders.lower(debian.machine_architecture())
    say("everything is here")


if __name__ == "__main__":
    sys.exit(main())
