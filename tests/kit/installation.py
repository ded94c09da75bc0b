"""An installation for `carrel doctor`: Carrel's pods as the chart makes them, which answer through the API server."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import Any

from carrel import __version__
from carrel.cli.checks.finding import Finding, HopState, Installation, ProbeOptions
from carrel.cli.checks.table import CHECKS, findings
from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Json, MergePatch
from carrel.kubernetes.objects.resources import PODS
from carrel.kubernetes.transport import ApiRequest, ApiResponse, Transport
from tests.kit.lab import OURS, Lab

IMAGE = "carrel:test"


@dataclass
class ProxiedPods:
    """A transport on which pods answer: those of a component, or one pod by its name."""

    inner: Transport
    date: str
    answers: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    """Component or pod, and path → status and text; without one, 200 and `ok`."""
    dates: dict[str, str] = field(default_factory=dict)
    """Component → what its clock says."""
    objects: dict[str, Json] = field(default_factory=dict)
    """Path → an object of a kind that the embedded API does not have."""
    unreachable: set[str] = field(default_factory=set)
    forbidden: bool = False

    async def send(self, request: ApiRequest) -> Any:
        if request.path in self.objects:
            return ApiResponse(200, json.dumps(self.objects[request.path]).encode())
        before, proxy, path = request.path.partition("/proxy/")
        if not proxy:
            return await self.inner.send(request)
        component = before.rpartition("/pods/")[2].removeprefix("https:").split(":")[0].removeprefix("carrel-")
        if self.forbidden:
            return _status(403, "Forbidden", 'pods is forbidden: User "ada" cannot get resource "pods/proxy"')
        if component in self.unreachable:
            return _status(503, "ServiceUnavailable", "error trying to reach service: dial tcp: i/o timeout")
        status, text = self.answers.get((component, f"/{path}"), (200, "ok"))
        return ApiResponse(status, text.encode(), {"date": self.dates.get(component, self.date)})

    async def aclose(self) -> None:
        await self.inner.aclose()


def _status(code: int, reason: str, message: str) -> ApiResponse:
    body = f'{{"kind": "Status", "code": {code}, "reason": "{reason}", "message": "{message.replace(chr(34), "")}"}}'
    return ApiResponse(code, body.encode())


class InstalledLab:
    """A lab in which some of Carrel's components are pods."""

    def __init__(self, lab: Lab, transport: Transport | None = None) -> None:
        self.lab = lab
        self.pods = ProxiedPods(transport or lab.api, format_datetime(lab.clock.now, usegmt=True))
        self.client = Client(self.pods)

    async def component(
        self, component: str, env: Mapping[str, str] | None = None, *, ready: bool = True, **metadata: Any
    ) -> Json:
        """One pod of a component, with the environment of its container."""
        labels = {
            "app.kubernetes.io/name": "carrel",
            "app.kubernetes.io/component": component,
            "app.kubernetes.io/version": metadata.pop("version", __version__),
        }
        container = {
            "name": component,
            "image": metadata.pop("image", IMAGE),
            "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
        }
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"carrel-{component}", "labels": labels, **metadata},
            "spec": {"nodeName": "n1", "containers": [container]},
        }
        made = await self.lab.client.create(PODS, body, OURS)
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        waiting: Json = {"name": component, "ready": False, "image": IMAGE, "imageID": "", "restartCount": 0}
        waiting["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": "it ended"}}
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": [] if ready else [waiting]}
        await self.lab.client.patch(
            PODS, made["metadata"]["name"], MergePatch({"status": status}), OURS, subresource="status"
        )
        return made

    async def all_components(self, env: Mapping[str, str] | None = None) -> None:
        for component in ("webhook", "scheduler", "controller", "booking", "agent"):
            await self.component(component, env)

    async def look(self, *names: str, probe: ProbeOptions | None = None) -> list[Finding]:
        """What these checks say."""
        checks = [each for each in CHECKS if not names or each.name in names]
        return await findings(Installation(self.client, OURS, self.lab.clock, probe), checks)

    async def one(self, name: str, probe: ProbeOptions | None = None) -> Finding:
        """The only finding, or the worst."""
        order = list(HopState)
        return max(await self.look(name, probe=probe), key=lambda each: order.index(each.state))
