"""A dialect is one file and one line in the registry: nothing else has to change when one is added."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from carrel.dialects import cpu_manifest, protected_keys, registry, visible_devices
from carrel.dialects.interface import Dialect, PodBinding, PodRequest, Reading
from carrel.dialects.options import DialectOptions
from carrel.kubernetes.objects.kinds import Pod
from carrel.ledger.gpus import MiB
from carrel.ledger.placement import Placement, place
from carrel.ledger.requests import Memory, Request
from tests.kit.gpus import N1, a_ledger, a_node, holder
from tests.kit.objects import pod, pod_from


def request_of(asking: Pod, reading: Reading) -> Request:
    return Request(1, Memory(MiB(int(asking.metadata.annotations["example.com/gpu-mib"]))))


def variables(asking: Pod, container: Any) -> list[dict[str, Any]]:
    return [{"name": "EXAMPLE_MIB", "value": asking.metadata.annotations["example.com/gpu-mib"]}]


EXAMPLES = Path(__file__).parents[3] / "examples"

EXAMPLE = Dialect(
    name="example",
    words="example.com/gpu-mib",
    example="",
    request_of=request_of,
    annotations=("example.com/gpu-mib",),
    resources=("example.com/gpu",),
    bind_annotations=lambda binding: {"example.com/index": str(binding.placement.gpus[0].index)},
    variables=variables,
    variable_names=("EXAMPLE_MIB",),
    written_annotations=("example.com/index",),
    written_labels=("example.com/placed",),
    node_labels=("example.com/has-gpus",),
)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line in the registry."""
    monkeypatch.setattr(registry, "ALL", registry.DialectTable((*registry.DIALECTS, EXAMPLE)))


def no_claim(namespace: str, name: str) -> None:
    return None


ASKING = pod({"example.com/gpu-mib": "3000"})
ASKED = PodRequest(EXAMPLE, Request(1, Memory(MiB(3000))))


def test_it_is_read() -> None:
    assert registry.request_of(ASKING, no_claim) == ASKED


def test_it_tells_the_pod_what_it_was_given() -> None:
    placement = place(a_ledger(a_node("n1")), ASKED.request, N1)
    assert isinstance(placement, Placement)
    notes = visible_devices.bind_annotations(PodBinding(ASKED, placement, holder("train"), 0, DialectOptions()))
    assert notes == {"carrel.dev/devices": "GPU-n1-0", "example.com/index": "0"}


def test_its_containers_see_their_gpu() -> None:
    container = {"name": "c0"}
    shown = visible_devices.shown(
        container,
        visible_devices.Sight("carrel.dev/devices", "carrel.dev/devices"),
        EXAMPLE.variables(ASKING, container),
    )
    assert [each["name"] for each in shown["env"]] == [
        "NVIDIA_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "EXAMPLE_MIB",
    ]


def test_its_keys_are_protected() -> None:
    assert protected_keys.is_protected_annotation("example.com/index")
    assert protected_keys.is_protected_label("example.com/placed")
    assert not protected_keys.is_protected_annotation("example.com/gpu-mib")


def test_it_is_taken_off_a_pod_that_goes_on_without_a_gpu() -> None:
    manifest = {
        "metadata": {"name": "train", "annotations": {"example.com/gpu-mib": "3000", "mine": "stays"}},
        "spec": {
            "nodeSelector": {"example.com/has-gpus": "true", "zone": "lab"},
            "containers": [
                {
                    "name": "c0",
                    "resources": {"limits": {"example.com/gpu": "1", "cpu": "1"}},
                    "env": [{"name": "EXAMPLE_MIB", "value": "3000"}],
                }
            ],
        },
    }
    without = cpu_manifest.on_cpu(manifest, {})
    (container,) = without["spec"]["containers"]
    assert without["metadata"]["annotations"] == {"mine": "stays"}
    assert without["spec"]["nodeSelector"] == {"zone": "lab"}
    assert container["resources"] == {"limits": {"cpu": "1"}}
    assert container["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": ""}]


def test_every_dialect_has_a_name_of_its_own_and_an_example_that_speaks_it() -> None:
    assert len({each.name for each in registry.DIALECTS}) == len(registry.DIALECTS)
    for dialect in registry.DIALECTS:
        documents = yaml.safe_load_all((EXAMPLES / dialect.example).read_text())
        pods = [pod_from(each) for each in documents if each["kind"] == "Pod"]
        assert {each.name for pod in pods for each in registry.dialects_of(pod)} == {dialect.name}
