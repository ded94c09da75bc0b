"""The one command: `carrel <command>`."""

import codecs
import io
import logging
import sys

from carrel.cli.commands import COMMANDS
from carrel.cli.frame import group
from carrel.log_lines import log_lines
from carrel.parsing.printable import simpler

app = group(COMMANDS, "Books, shares and schedules the GPUs of a Kubernetes cluster, on one ledger.")


def main() -> None:
    _write_in_any_encoding()
    log_lines(logging.WARNING, form="%(levelname)s %(message)s")  # a component that runs says more, in another form
    app(prog_name="carrel")


def _write_in_any_encoding() -> None:
    """Where the terminal has no UTF-8, what its encoding lacks is written in simpler characters."""
    codecs.register_error("simpler", simpler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="simpler")


if __name__ == "__main__":
    main()
