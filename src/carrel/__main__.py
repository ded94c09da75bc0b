"""The one command: `carrel <command>`."""

import logging

from carrel.cli.commands import COMMANDS
from carrel.cli.frame import group
from carrel.log_lines import log_lines

app = group(COMMANDS, "Books, shares and schedules the GPUs of a Kubernetes cluster, on one ledger.")


def main() -> None:
    log_lines(logging.WARNING, form="%(levelname)s %(message)s")  # a component that runs says more, in another form
    app(prog_name="carrel")


if __name__ == "__main__":
    main()
