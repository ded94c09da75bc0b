"""A real PostgreSQL for a test session: in its own folder, as user nobody if we are root, reached by a socket.

The kernel ends it when this process ends, in whatever way.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests.kit.eventually import LIMIT_S
from tests.kit.programs import postgresql


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Yields the folder of its socket, which is its address."""
    folder = Path(tempfile.mkdtemp(prefix="carrel-pg-"))
    binaries = postgresql(folder)
    nobody = pwd.getpwnam("nobody")
    who: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    environment = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
    place: dict[str, Any] = {"cwd": folder, "env": environment, **who}
    subprocess.run(
        [binaries / "initdb", "--no-sync", "--username=carrel", "--auth=trust", "--encoding=UTF8", "data"],
        check=True, stdout=subprocess.DEVNULL, **place,
    )  # fmt: skip
    options = {
        "listen_addresses": "",
        "unix_socket_directories": str(folder),
        "max_connections": "60",
        # Nothing needs to survive this machine.
        "fsync": "off",
        "full_page_writes": "off",
        "autovacuum": "off",
    }
    command = [
        "setpriv",
        "--pdeathsig",
        "INT",
        str(binaries / "postgres"),
        "-D",
        "data",
        *(f"--{name}={value}" for name, value in options.items()),
    ]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, **place)
    try:
        _wait_ready(server, folder)
        yield str(folder)
    finally:
        server.send_signal(signal.SIGINT)  # without waiting for clients
        server.wait(LIMIT_S)
        shutil.rmtree(folder, ignore_errors=True)


def new_database(socket: str, template: str = "template0") -> str:
    """The URL of a database that nobody else uses."""
    name = f"t{secrets.token_hex(6)}"
    with psycopg.connect(host=socket, user="carrel", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
    return f"postgresql://carrel@/{name}?host={socket}"


def _wait_ready(server: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            psycopg.connect(host=str(folder), user="carrel", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL did not start:\n{(folder / 'log').read_text()}") from None
            time.sleep(0.05)
