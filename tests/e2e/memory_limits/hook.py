"""NVIDIA's own hook for limits of memory, on a container that is a sleeping process in a control group of its own.

The hook wants control groups of version 2, which most machines that run these tests do not have at the usual place. So
it runs in a mount namespace of its own, in which they are.
"""

import contextlib
import json
import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

UNIFIED = "mount -t cgroup2 none /sys/fs/cgroup && "
UNLIMITED = 2**64 - 1
MIB = 1024 * 1024


@dataclass(frozen=True)
class Limit:
    """What the hook told the driver."""

    gpu: str
    soft: int
    hard: int
    """In bytes."""
    group: str


@dataclass(frozen=True)
class Outcome:
    code: int
    limits: Sequence[Limit]
    said: str


def in_namespace(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = ["unshare", "--mount", "sh", "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@contextlib.contextmanager
def container() -> Iterator[tuple[int, str]]:
    """A process in a control group of its own: its number, and the group's path."""
    name = f"carrel-test-{uuid.uuid4().hex[:12]}"
    with subprocess.Popen(["sleep", "600"]) as sleeping:
        there = f"/sys/fs/cgroup/{name}"
        made = in_namespace(f"{UNIFIED} mkdir {there} && echo {sleeping.pid} > {there}/cgroup.procs")
        try:
            assert made.returncode == 0, made.stderr
            yield sleeping.pid, there
        finally:
            sleeping.kill()
            sleeping.wait()
            in_namespace(f"{UNIFIED} rmdir {there}")


@dataclass(frozen=True)
class Hook:
    program: Path
    driver: Path
    """A folder with the driver's library, as it would be below `/`."""
    folder: Path

    def run(self, env: Sequence[str], gpus: Sequence[str], *, unified: bool = True) -> tuple[Outcome, str]:
        """What becomes of a container with these variables and GPUs; and its control group."""
        calls = self.folder / "calls"
        calls.write_text("")
        (self.folder / "config.json").write_text(
            json.dumps({"ociVersion": "1.2.0", "process": {"args": ["sleep"], "cwd": "/", "env": list(env)}})
        )
        with container() as (pid, group):
            state = {"ociVersion": "1.2.0", "id": "c", "status": "created", "pid": pid, "bundle": str(self.folder)}
            (self.folder / "state.json").write_text(json.dumps(state))
            ids = " ".join(f"--gpu-id {each}" for each in gpus)
            hook = f"{self.program} hook apply-cuda-memory-limits --driver-root {self.driver} {ids}"
            mount = UNIFIED if unified else ""
            done = in_namespace(f"{mount}exec {hook} < {self.folder}/state.json", NVML_CALLS=str(calls))
        limits = [
            Limit(gpu, int(soft), int(hard), path)
            for gpu, soft, hard, path in map(str.split, calls.read_text().splitlines())
        ]
        return Outcome(done.returncode, limits, done.stderr), group
