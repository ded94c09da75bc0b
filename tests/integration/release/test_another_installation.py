"""A component that finds the marker of another installation says what to do, and ends. It has written nothing."""

from pathlib import Path

import pytest

from carrel.kubernetes.cluster import EVERYTHING
from carrel.kubernetes.objects.resources import LEASES, SECRETS
from kubernetes_in_memory import EmbeddedApi
from kubernetes_in_memory.http_server import serve
from kubernetes_in_memory.messages import HttpResponse, RequestLike
from tests.integration.scheduling.test_process import carrel_process
from tests.kit.lab import a_lab

MARKER = b'{"metadata": {"name": "carrel-installation", "annotations": {"carrel.dev/installed-in": "gpus"}}}'


class WithMarker:
    """The embedded API, which has no roles, and the marker of an installation in the namespace `gpus`."""

    def __init__(self, api: EmbeddedApi) -> None:
        self._api = api

    async def send(self, request: RequestLike) -> HttpResponse:
        is_asked = request.path == "/apis/rbac.authorization.k8s.io/v1/clusterroles/carrel-installation"
        return HttpResponse(200, MARKER) if is_asked else await self._api.send(request)


@pytest.mark.parametrize("component", ["booking", "webhook"])
async def test_a_component_beside_another_installation_ends_with_the_reason(component: str, tmp_path: Path) -> None:
    options = {"booking": ("--database", f"sqlite:///{tmp_path}/bookings.db")}
    async with (
        a_lab([], in_real_time=True) as lab,
        serve(WithMarker(lab.api)) as served,
        carrel_process(component, "--server", served.url, "--port", "0", *options.get(component, ())) as process,
    ):
        code, told = await process.wait_end()
        secrets = (await lab.client.list(SECRETS, EVERYTHING)).items
        leases = (await lab.client.list(LEASES, EVERYTHING)).items

    assert code == 5
    assert "✗ Another installation of Carrel is here" in told
    assert "Carrel is installed in the namespace gpus" in told
    assert "Traceback" not in told
    assert secrets == []
    assert [lease.metadata.name for lease in leases] == ["carrel-extender"], "the lab's own, from before"
