"""What NVIDIA's own hook makes of the variables that Carrel writes: with its program, and a stand-in for the driver.

It runs as a container runtime runs it, with the state and the spec of a container, and records what it asks the driver
to do. That the runtime calls it, and what a driver does then, is not tried here: there is no GPU.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from carrel.dialects.gpuclaim_objects import GPU_CLAIMS
from carrel.kubernetes.objects.resources import PODS
from testbed import build
from tests.e2e.memory_limits.hook import MIB, UNLIMITED, Hook
from tests.kit.gpus import a_node
from tests.kit.lab import a_lab
from tests.kit.limited_pods import CLAIM, ON, PARTS, can_limit, named
from tests.kit.programs import c_compiler
from tests.kit.reviews import Json, ReviewedCluster, a_pod

REQUEST, LIMIT = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"
SOURCE = Path(__file__).parent / "memory_limits/nvml_calls.c"


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the library of a driver each: one that limits memory, and an older one."""
    found = {}
    for name, options in (("new", []), ("old", ["-DOLD_DRIVER"])):
        found[name] = tmp_path_factory.mktemp(name)
        folder = found[name] / "usr/lib64"
        folder.mkdir(parents=True)
        library = folder / "libnvidia-ml.so.1"
        subprocess.run([*c_compiler(), "-shared", "-fPIC", *options, "-o", library, SOURCE], check=True)
    return found


def hook(drivers: dict[str, Path], folder: Path, driver: str = "new") -> Hook:
    return Hook(build.built(build.CONTAINER_TOOLKIT) / "nvidia-ctk", drivers[driver], folder)


@pytest.mark.parametrize(
    ("env", "limits"),
    [
        pytest.param([f"{REQUEST}=8138", f"{LIMIT}=8138"], (8138, 8138), id="both"),
        pytest.param([f"{LIMIT}=8138"], (8138, 8138), id="only a limit"),
        pytest.param([f"{REQUEST}=100"], (100, None), id="only a request: no hard limit"),
        pytest.param([f"{REQUEST}=0", f"{LIMIT}=100"], (0, 100), id="as Carrel writes it"),
        pytest.param([f"{REQUEST}=0", f"{LIMIT}=0"], (0, 0), id="nothing at all"),
        pytest.param([f"{LIMIT}=100", f"{LIMIT}=9999"], (100, 100), id="of one name twice, the first"),
    ],
)
def test_the_hook_sets_these_limits(
    drivers: dict[str, Path], tmp_path: Path, env: list[str], limits: tuple[int, int | None]
) -> None:
    outcome, group = hook(drivers, tmp_path).run(env, ["GPU-a", "GPU-b"])

    soft, hard = limits
    assert outcome.code == 0, outcome.said
    wanted = (soft * MIB, UNLIMITED if hard is None else hard * MIB, group)
    assert [(each.gpu, each.soft, each.hard, each.group) for each in outcome.limits] == [
        ("GPU-a", *wanted),
        ("GPU-b", *wanted),
    ]


@pytest.mark.parametrize(
    "env",
    [
        pytest.param([f"{REQUEST}=", f"{LIMIT}="], id="both empty"),
        pytest.param([f"{REQUEST}=0", f"{LIMIT}="], id="an annotation that is missing"),
        pytest.param([f"{REQUEST}=0", f"{LIMIT}=much"], id="no number"),
        pytest.param([f"{REQUEST}=0", f"{LIMIT}=-1"], id="less than nothing"),
        pytest.param([f"{REQUEST}=200", f"{LIMIT}=100"], id="a request above the limit"),
        pytest.param([f"{REQUEST}=0", f"{LIMIT}=16277"], id="more than the GPU has"),
    ],
)
def test_the_hook_starts_no_container_with_these(drivers: dict[str, Path], tmp_path: Path, env: list[str]) -> None:
    outcome, _ = hook(drivers, tmp_path).run(env, ["GPU-a"])

    assert outcome.code != 0
    assert outcome.limits == []


def test_without_the_variables_the_hook_does_nothing_anywhere(drivers: dict[str, Path], tmp_path: Path) -> None:
    for driver in drivers:
        for unified in (True, False):
            outcome, _ = hook(drivers, tmp_path, driver).run(["PATH=/bin"], ["GPU-a"], unified=unified)
            assert (outcome.code, outcome.limits) == (0, []), outcome.said


def test_an_old_driver_starts_no_container_with_a_limit(drivers: dict[str, Path], tmp_path: Path) -> None:
    outcome, _ = hook(drivers, tmp_path, "old").run([f"{REQUEST}=0", f"{LIMIT}=100"], ["GPU-a"])

    assert outcome.code != 0


def test_control_groups_of_version_1_start_no_container_with_a_limit(drivers: dict[str, Path], tmp_path: Path) -> None:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return  # this machine has no others
    outcome, _ = hook(drivers, tmp_path).run([f"{REQUEST}=0", f"{LIMIT}=100"], ["GPU-a"], unified=False)

    assert (outcome.code, outcome.limits) == (1, [])


# --- Carrel's variables ----------------------------------------------------------------------------------------------


def env_of(pod: Json, container: str, image: Sequence[str] = ()) -> list[str]:
    """The variables as the kubelet makes them of a pod, and containerd of them and those of the image."""
    (found,) = [each for each in pod["spec"]["containers"] if each["name"] == container]
    notes, made = pod["metadata"]["annotations"], dict(each.split("=", 1) for each in image)
    for each in found["env"]:
        path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        key = path.removeprefix("metadata.annotations['").removesuffix("']")
        made[each["name"]] = notes.get(key, "") if path else each["value"]
    return [f"{name}={value}" for name, value in made.items()]


async def bound(pod: Json) -> Json:
    """The pod after review and Binding, on a GPU of 16,276 MiB."""
    reviewed = await ReviewedCluster(options=ON, claims=[CLAIM]).create(pod)
    async with a_lab([a_node("n1", memory=16_276)]) as lab, lab.replica() as extender:
        await can_limit(lab, extender)
        await lab.client.create(GPU_CLAIMS, CLAIM, "lab")
        there = await lab.client.create(PODS, named(reviewed.object), "lab")
        await extender.sees(there)
        assert await extender.bind(there, "n1") is None
        return await lab.client.get(PODS, "a", "lab")


@pytest.mark.parametrize(("pod", "mib"), PARTS.values(), ids=PARTS)
async def test_a_part_in_each_dialect_is_limited_on_its_own_gpu(
    drivers: dict[str, Path], tmp_path: Path, pod: Json, mib: str
) -> None:
    there = await bound(pod)
    image = [f"{LIMIT}=99999", f"{REQUEST}=99999"]
    gpus = there["metadata"]["annotations"]["carrel.dev/devices"].split(",")
    for of_image in ([], image):
        outcome, group = hook(drivers, tmp_path).run(env_of(there, "main", of_image), gpus)

        assert outcome.code == 0, outcome.said
        found = [(each.gpu, each.soft, each.hard, each.group) for each in outcome.limits]
        assert found == [(gpu, 0, int(mib) * MIB, group) for gpu in gpus]


async def test_two_containers_of_gpushare_have_a_limit_each(drivers: dict[str, Path], tmp_path: Path) -> None:
    amounts = {"a": 4000, "b": 6000}
    containers = [
        {"name": name, "image": "x", "resources": {"limits": {"aliyun.com/gpu-mem": str(each)}}}
        for name, each in amounts.items()
    ]
    there = await bound(a_pod(containers=containers))
    gpus = there["metadata"]["annotations"]["carrel.dev/devices"].split(",")

    hard = {name: hook(drivers, tmp_path).run(env_of(there, name), gpus)[0].limits[0].hard for name in amounts}
    assert hard == {name: each * MIB for name, each in amounts.items()}
