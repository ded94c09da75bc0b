"""Kubelets that really start the server of a notebook, as a process on an address of its own.

All addresses of 127.0.0.0/8 belong to this machine, so that each pod has one; other containers are only reported as
running. A pod that is deleted gets SIGTERM, and is removed when its process has ended.
"""

import asyncio
import base64
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from carrel.demo.component_processes import end_with_parent
from carrel.demo.kubelets import pod_address
from carrel.kubernetes.cluster import Json, NotFound
from carrel.kubernetes.objects.kinds import Pod
from carrel.kubernetes.objects.resources import PODS, SECRETS
from testbed.kubelets import SimulatedKubelets

LOOPBACK = 127
SERVER = "jupyterhub-singleuser"
USERNAME = "hub.jupyter.org/username"
STOP_S = 20.0
CERTIFICATES = {"JUPYTERHUB_SSL_KEYFILE", "JUPYTERHUB_SSL_CERTFILE", "JUPYTERHUB_SSL_CLIENT_CA"}
"""Where a server with `internal_ssl` finds its files."""
JUPYTER = ("-m", "jupyterhub.singleuser", "--allow-root")
STAND_IN = (str(Path(__file__).with_name("stand_in.py")),)
POD_FILE = "pod.txt"
"""In the home folder of each server: which pod it is."""


class NotebookKubelets(SimulatedKubelets):
    def __init__(self, folder: Path, *arguments: Any, by_name: bool = False) -> None:
        """`folder`: for the logs and the home folders of the servers. `by_name`: pods of the same name have the same
        address, one after the other; else each has its own."""
        super().__init__(*arguments)
        self.folder = folder
        self._by_name = by_name
        self.with_jupyter: set[str] = set()
        """The users whose servers are real ones; those of others only answer."""
        self.may_remove = asyncio.Event()
        """While it is not set, no pod is removed: a test looks at pods that are ending."""
        self.may_remove.set()
        self._servers: dict[str, asyncio.subprocess.Process] = {}
        self._names: dict[str, str] = {}
        self._starting: set[str] = set()

    def address_of(self, name: str, uid: str) -> str:
        return pod_address(name if self._by_name else uid, LOOPBACK)

    def logs(self) -> str:
        return "\n".join(f"--- {each.name}\n{each.read_text()[-3000:]}" for each in self.folder.glob("*.log"))

    async def start_containers(self, pod: Pod) -> None:
        """Several changes of one pod may arrive at once: it is started once."""
        uid = pod.metadata.uid
        if uid in self._starting:
            return
        self._starting.add(uid)
        document = await self._cluster.get(PODS, pod.metadata.name, pod.metadata.namespace)
        container = document["spec"]["containers"][0]
        if SERVER not in " ".join([*(container.get("command") or ()), *(container.get("args") or ())]):
            return
        self._names[uid] = pod.metadata.name
        home = self.folder / uid
        home.mkdir()
        (home / POD_FILE).write_text(uid)
        await self._mount_secrets(document, home)
        is_real = pod.metadata.annotations.get(USERNAME) in self.with_jupyter
        with (self.folder / f"{pod.metadata.name}-{uid[:8]}.log").open("wb") as output:
            self._servers[uid] = await asyncio.create_subprocess_exec(
                *(sys.executable, *(JUPYTER if is_real else STAND_IN)),
                cwd=home,
                env={**_of_the_machine(home), **self._environment(document, container, home)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    async def _mount_secrets(self, pod: Json, home: Path) -> None:
        """Below the home folder. A container does not start before they exist: the hub writes them after the pod."""
        for name in (each["secret"]["secretName"] for each in pod["spec"].get("volumes", ()) if "secret" in each):
            while True:
                with contextlib.suppress(NotFound):
                    secret = await self._cluster.get(SECRETS, name, pod["metadata"]["namespace"])
                    break
                await asyncio.sleep(0.1)
            for file, content in secret["data"].items():
                (home / file).write_bytes(base64.b64decode(content))

    def _environment(self, pod: Json, container: Json, home: Path) -> dict[str, str]:
        """Of the container, with what it is told about its pod. The server listens on the pod's own address."""
        annotations = pod["metadata"].get("annotations", {})
        found = {}
        for variable in container.get("env", ()):
            field = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", "")
            told = annotations.get(field.removeprefix("metadata.annotations['").removesuffix("']"), "")
            found[variable["name"]] = variable.get("value", told) or told
        for name in CERTIFICATES & found.keys():
            found[name] = str(home / Path(found[name]).name)
        url = found["JUPYTERHUB_SERVICE_URL"]
        for anywhere in ("0.0.0.0", "[::]"):
            url = url.replace(f"//{anywhere}:", f"//{self._address(pod['metadata'])}:")
        return {**found, "JUPYTERHUB_SERVICE_URL": url}

    def _address(self, metadata: Json) -> str:
        return self.address_of(metadata["name"], metadata["uid"])

    async def end_containers(self, pod: Pod) -> None:
        process = self._servers.get(pod.metadata.uid)
        if process is not None and process.returncode is None:
            await _end(process)
        await self.may_remove.wait()

    def running_status(self, pod: Pod) -> dict[str, Any]:
        address = self.address_of(pod.metadata.name, pod.metadata.uid)
        return {**super().running_status(pod), "podIP": address, "podIPs": [{"ip": address}]}

    def running(self) -> set[str]:
        """The uids of the pods whose servers run."""
        return {uid for uid, process in self._servers.items() if process.returncode is None}

    def started(self, name: str) -> set[str]:
        """The uids of all pods whose names begin so and whose servers were ever started."""
        return {uid for uid, pod in self._names.items() if pod.startswith(name)}

    async def end_all(self) -> None:
        await asyncio.gather(*(_end(each) for each in self._servers.values() if each.returncode is None))


async def _end(process: asyncio.subprocess.Process) -> None:
    """With its kernels, which are in its session."""
    with contextlib.suppress(TimeoutError, ProcessLookupError):
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(STOP_S):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _of_the_machine(home: Path) -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("PATH", "LANG", "LC_ALL") if key in os.environ}
    app = "jupyter_server.serverapp.ServerApp"
    # Without JUPYTER_NO_CONFIG the server would load what JupyterLab adds, which these tests do not need.
    return {**kept, "HOME": str(home), "JUPYTERHUB_SINGLEUSER_APP": app, "JUPYTER_NO_CONFIG": "1"}
