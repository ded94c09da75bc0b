"""Every component that serves says so, and ends, on a Kubernetes that is older than Carrel can run on."""

from pathlib import Path

import pytest

from kubernetes_in_memory import EmbeddedApi
from kubernetes_in_memory.http_server import serve
from kubernetes_in_memory.messages import HttpResponse, RequestLike
from tests.integration.scheduling.test_process import carrel_process
from tests.kit.lab import a_lab

GPUS = "gpus: [{count: 1, model: Tesla-T4, memoryMiB: 15360}]"


class AsRelease:
    """The embedded API, but for what it says it is."""

    def __init__(self, api: EmbeddedApi, minor: str) -> None:
        self._api = api
        self._version = HttpResponse(200, b'{"major": "1", "minor": "%s"}' % minor.encode())

    async def send(self, request: RequestLike) -> HttpResponse:
        return self._version if request.path == "/version" else await self._api.send(request)


@pytest.mark.parametrize("component", ["agent", "booking", "controller", "extender", "webhook"])
async def test_a_component_ends_with_the_reason(component: str, tmp_path: Path) -> None:
    (tmp_path / "gpus.yaml").write_text(GPUS)
    options = {
        "agent": ("--node-name", "n1", "--simulate", str(tmp_path / "gpus.yaml"), "--kubelet-folder", str(tmp_path)),
        "booking": ("--database", f"sqlite:///{tmp_path}/bookings.db"),
    }
    async with (
        a_lab([], in_real_time=True) as lab,
        serve(AsRelease(lab.api, "32")) as served,
        carrel_process(component, "--server", served.url, "--port", "0", *options.get(component, ())) as process,
    ):
        code, told = await process.wait_end()

    assert code == 6
    assert "✗ This Kubernetes is too old for Carrel" in told
    assert "the API server is Kubernetes 1.32; Carrel needs 1.33 or newer" in told
    assert "Traceback" not in told
