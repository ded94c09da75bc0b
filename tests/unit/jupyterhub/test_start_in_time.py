"""How long a notebook may take to start: the hub's own time, and not counted in it, the wait for a booked GPU."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.config import kube_config

from carrel.demo.component_processes import ComponentStarter, ComponentTokens
from carrel.jupyterhub import CarrelSpawner, spawner
from tests.kit.eventually import eventually


class SlowSpawner(CarrelSpawner):
    """Its pod is what the test says, and its start ends when the test says."""

    pod: Any = None

    def __init__(self) -> None:
        super().__init__(_mock=True, start_timeout=1, booked_gpu_wait=600)
        self.may_start = asyncio.Event()
        self.looks = 0

    def _pod(self) -> Any:
        self.looks += 1
        return self.pod

    async def _start(self) -> str:
        await self.may_start.wait()
        return "http://127.0.0.1:8888"


BOOKED = {"metadata": {"uid": "1", "annotations": {"carrel.dev/tier": "booked"}}, "spec": {}}
OPPORTUNISTIC = {"metadata": {"uid": "1", "annotations": {"carrel.dev/tier": "opportunistic"}}, "spec": {}}


LOOK_S = 0.01
LOOKS = round(1 / LOOK_S)
"""In the time that a notebook has to start."""


@pytest.fixture(autouse=True)
def a_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It looks often, and knows an API server that it never asks."""
    monkeypatch.setattr(spawner, "LOOK_S", LOOK_S)
    kubeconfig = ComponentStarter(tmp_path, "http://127.0.0.1:9", ComponentTokens()).kubeconfig("none")
    (tmp_path / "kubeconfig").write_text(kubeconfig)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))


async def test_the_hub_gives_up_a_notebook_that_does_not_start_in_time() -> None:
    slow = SlowSpawner()
    slow.pod = OPPORTUNISTIC

    with pytest.raises(TimeoutError):
        await slow.start()

    assert slow.start_timeout == 1


async def test_waiting_for_a_booked_gpu_does_not_count_as_time_to_start() -> None:
    slow = SlowSpawner()
    slow.pod = BOOKED

    starting = slow.start()
    assert slow.start_timeout == 601, "the hub reads it now, once"
    await eventually(lambda: slow.looks > 2 * LOOKS or starting.done(), "it waits twice as long as it has to start")
    assert not starting.done()
    slow.may_start.set()

    assert await starting == "http://127.0.0.1:8888"
    assert slow.start_timeout == 1
