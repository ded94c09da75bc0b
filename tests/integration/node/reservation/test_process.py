"""The program in a reservation pod: which GPU it finds, and how it reports it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from carrel.kubernetes.client import Client
from carrel.ledger.refusals import Refusal
from carrel.node.nvidia.visible_gpu import GpuSources, visible_gpu
from carrel.node.reservation import hold_gpu
from carrel.node.settings import ReservationSettings
from kubernetes_in_memory.faults import FaultPlan
from tests.kit.eventually import LIMIT_S, eventually
from tests.kit.faults import Faulty
from tests.kit.lab import Lab, a_lab
from tests.kit.programs import c_compiler

STUB = Path(__file__).parents[1] / "nvidia" / "nvml_stub.c"
INFORMATION = """\
Model: 		 NVIDIA A100-SXM4-80GB
IRQ:   		 215
GPU UUID: 	 {uuid}
Video BIOS: 	 92.00.45.00.03
"""


def files(folder: Path, *uuids: str) -> Path:
    for number, uuid in enumerate(uuids):
        gpu = folder / f"0000:{number:02}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(INFORMATION.format(uuid=uuid))
    return folder


@pytest.mark.parametrize(
    ("uuids", "environment", "gpu"),
    [
        pytest.param(["GPU-a"], {"NVIDIA_VISIBLE_DEVICES": "GPU-b"}, "GPU-a", id="the driver's files come first"),
        pytest.param([], {"NVIDIA_VISIBLE_DEVICES": "GPU-b"}, "GPU-b", id="without them what the plugin set"),
        pytest.param(
            ["GPU-a", "GPU-b"], {"NVIDIA_VISIBLE_DEVICES": "GPU-b"}, "GPU-b", id="of several, the one that is named"
        ),
        pytest.param(["GPU-a"], {"NVIDIA_VISIBLE_DEVICES": "MIG-a"}, "MIG-a", id="a MIG slice of the GPU in the files"),
        pytest.param(["GPU-????"], {"NVIDIA_VISIBLE_DEVICES": "GPU-b"}, "GPU-b", id="a driver that does not know yet"),
    ],
)
def test_the_one_visible_gpu_is_found(
    tmp_path: Path, uuids: list[str], environment: Mapping[str, str], gpu: str
) -> None:
    assert visible_gpu(GpuSources(environment, files(tmp_path, *uuids))) == gpu


@pytest.mark.parametrize(
    ("uuids", "environment", "words"),
    [
        pytest.param(["GPU-a", "GPU-b"], {}, "2 GPUs are visible, GPU-a, GPU-b", id="two GPUs in the files"),
        pytest.param([], {"NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, "2 GPUs are visible", id="two in the environment"),
        pytest.param([], {}, "has no GPU", id="nothing at all"),
        pytest.param(
            ["GPU-a", "GPU-b"], {"NVIDIA_VISIBLE_DEVICES": "all"}, "2 GPUs are visible", id="several, and none is named"
        ),
        pytest.param([], {"NVIDIA_VISIBLE_DEVICES": "all"}, "'all'", id="all"),
        pytest.param([], {"NVIDIA_VISIBLE_DEVICES": "0"}, "'0'", id="an index"),
        pytest.param([], {"NVIDIA_VISIBLE_DEVICES": "GPU-a,"}, "'GPU-a,'", id="half a list"),
        pytest.param([], {"NVIDIA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, "'MIG-1,MIG-2'", id="two MIG slices"),
        pytest.param(["broken"], {}, "GPU UUID", id="a malformed file"),
    ],
)
def test_none_or_several_gpus_are_refused_with_the_reason(
    tmp_path: Path, uuids: list[str], environment: Mapping[str, str], words: str
) -> None:
    answer = visible_gpu(GpuSources(environment, files(tmp_path, *uuids)))

    assert isinstance(answer, Refusal)
    assert words in answer.reason


@pytest.mark.parametrize(
    ("more", "shown", "found"),
    [
        pytest.param("", "none", "GPU-n", id="a GPU, where the driver shows no files"),
        pytest.param("mig 0\nslice 0 2 MIG-n 9728 0 1g.10gb\n", "shown", "MIG-n", id="a MIG slice, also with files"),
    ],
)
def test_nvml_is_asked(tmp_path: Path, more: str, shown: str, found: str) -> None:
    library, machine = tmp_path / "libnvidia-ml.so.1", tmp_path / "machine"
    subprocess.run([*c_compiler(), "-shared", "-fPIC", "-o", library, STUB], check=True)
    machine.write_text(f"gpu GPU-n 00000000:3B:00.0 81920 0 NVIDIA A100-SXM4-80GB\n{more}")
    files(tmp_path / "shown", "GPU-n")
    look = f"""
from pathlib import Path
from carrel.node.nvidia.visible_gpu import GpuSources, visible_gpu
print(visible_gpu(GpuSources({{"NVIDIA_VISIBLE_DEVICES": "GPU-e"}}, Path({str(tmp_path / shown)!r}))))
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "NVML_STUB": str(machine)}
    answer = subprocess.run([sys.executable, "-c", look], env=environment, capture_output=True, text=True, check=True)

    assert answer.stdout == f"{found}\n"


SETTINGS = ReservationSettings(pod_name="holds", pod_namespace="lab")


async def wait_reported(lab: Lab) -> str:
    """The GPU, once it is written on the pod."""
    async with lab.replica() as carrel:

        def gpu() -> str:
            pod = carrel.pods.store.get("holds", "lab")
            return pod.metadata.annotations.get("run.ai/reserve_for_gpu_index", "") if pod else ""

        return await eventually(gpu)


async def test_the_gpu_is_written_on_the_pod_and_held_until_the_signal(tmp_path: Path) -> None:
    async with a_lab([]) as lab:
        await lab.pod("holds")
        stop = asyncio.Event()
        holding = asyncio.create_task(hold_gpu(lab.client, SETTINGS, GpuSources({}, files(tmp_path, "GPU-a")), stop))

        assert await wait_reported(lab) == "GPU-a"
        assert not holding.done()
        stop.set()
        await holding


async def test_a_failure_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU at first, then an API server that refuses half of the writes."""
    monkeypatch.setattr("carrel.node.reservation.RETRY_S", 0.001)
    async with a_lab([]) as lab:
        await lab.pod("holds")
        faulty = Client(Faulty(lab.api, FaultPlan(seed=1, refuse=0.5)))
        stop = asyncio.Event()
        holding = asyncio.create_task(hold_gpu(faulty, SETTINGS, GpuSources({}, tmp_path), stop))
        await asyncio.sleep(0)
        files(tmp_path, "GPU-a")
        assert await wait_reported(lab) == "GPU-a"
        stop.set()
        await holding


def test_a_missing_pod_name_is_refused() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "carrel", "reservation"], capture_output=True, text=True, check=False
    )

    assert answer.returncode == 2
    assert "POD_NAME" in answer.stderr


async def test_the_program_ends_on_sigterm_also_while_it_finds_no_gpu() -> None:
    options = ["--server", "http://127.0.0.1:1", "--pod-name", "holds", "--pod-namespace", "lab"]
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "carrel", "reservation", *options, stderr=asyncio.subprocess.PIPE
    )
    assert program.stderr is not None
    assert b"gpu_not_reported" in await program.stderr.readline()
    program.send_signal(signal.SIGTERM)

    async with asyncio.timeout(LIMIT_S):
        assert await program.wait() == 0
