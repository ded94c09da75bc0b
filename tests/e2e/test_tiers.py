"""The manual of the GPU booking system, sentence by sentence, on a real API server and a real kubelet."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from carrel.protocols.kubernetes.time import instant
from tests.e2e.carrel_node import WHOLE, CarrelNode, a_pod, carrel_node, reading_its_cards
from tests.e2e.pods import Json, create, eventually, namespace, wait_for_phase

CONTROLLER = "system:serviceaccount:carrel:carrel-controller"
LOW = {"carrel.dev/tier": "opportunistic", "terminate-at": "1900-01-01T08:00:00Z"}
LIMIT_S = 180
"""For broken components; a revocation takes seconds."""


@pytest.fixture(scope="module")
def carrel() -> Iterator[CarrelNode]:
    with carrel_node("tiers") as running:
        running.controller.stop()
        groups = ["system:serviceaccounts", "system:serviceaccounts:carrel", "system:authenticated"]
        # With the rights of its ServiceAccount, and no more.
        running.controller = running.start_controller("--kubeconfig", running.api.kubeconfig_of(CONTROLLER, groups))
        yield running


def high(hours: float = 24) -> dict[str, str]:
    """What the webhook writes on the pod of somebody whose booking ends then."""
    end = datetime.now(UTC) + timedelta(hours=hours)
    return {"carrel.dev/tier": "booked", "terminate-at": end.isoformat(timespec="seconds")}


def a_gpu_pod(name: str, annotations: dict[str, str]) -> Json:
    return reading_its_cards(a_pod(name, {WHOLE: "1"}, annotations))


def successor(carrel: CarrelNode, ours: str, of: Json) -> Json:
    """The pod that runs under the name of the one that went."""

    def runs() -> Json | None:
        pod = carrel.pods(ours).get(of["metadata"]["name"])
        is_another = pod is not None and pod["metadata"]["uid"] != of["metadata"]["uid"]
        return pod if pod is not None and is_another and pod["status"]["phase"] == "Running" else None

    found = eventually(runs, LIMIT_S)
    assert found is not None
    return found


def events(carrel: CarrelNode, ours: str, pod: Json) -> dict[str, str]:
    """Reason → message."""
    told: dict[str, Any] = carrel.api.call("GET", f"/api/v1/namespaces/{ours}/events")
    uid = pod["metadata"]["uid"]
    return {each["reason"]: each["message"] for each in told["items"] if each["involvedObject"].get("uid") == uid}


def test_the_manual_sentence_by_sentence(carrel: CarrelNode) -> None:
    cards = [device["uuid"] for device in carrel.devices()]
    with namespace(carrel.api) as ours:
        # If GPU cards are available, a Low Priority user will immediately be assigned one.
        low, told = carrel.run(ours, a_gpu_pod("notebook", LOW))
        its_card = told["NVIDIA_VISIBLE_DEVICES"]
        assert its_card in cards

        # If the High Priority user can be assigned a different available GPU card, you will retain your card …
        first, told = carrel.run(ours, a_gpu_pod("booked-1", high()))
        assert {told["NVIDIA_VISIBLE_DEVICES"], its_card} == set(cards)
        assert carrel.pods(ours)["notebook"]["metadata"]["uid"] == low["metadata"]["uid"]

        # … until all resources are exhausted and another High Priority request occurs: your temporarily assigned GPU
        # will be immediately revoked and reassigned to the High Priority user.
        create(carrel.api, ours, a_gpu_pod("booked-2", high()))
        degraded = successor(carrel, ours, of=low)
        eventually(lambda: carrel.pods(ours)["booked-2"]["status"]["phase"] == "Running", LIMIT_S)
        assert carrel.told(ours, "booked-2")["NVIDIA_VISIBLE_DEVICES"] == its_card

        # This allows the workload to be rescheduled on a standard CPU node (without GPU access).
        assert carrel.told(ours, "notebook") == {"NVIDIA_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}
        assert not degraded["spec"]["containers"][0]["resources"].get("limits")
        assert degraded["metadata"]["labels"] == low["metadata"]["labels"]
        assert "terminate-at" not in degraded["metadata"]["annotations"]
        eventually(lambda: "handed over to CPU" in events(carrel, ours, degraded).get("HandedOverToCPU", ""))
        assert "booked pod" in events(carrel, ours, low)["GPURevoked"]

        # High Priority guarantees your continued access to the reserved GPU for the duration of your slot.
        pods = carrel.pods(ours)
        assert pods["booked-1"]["metadata"]["uid"] == first["metadata"]["uid"]

        # If the current UTC time is past the terminate-at value, the Pod is deleted … and recreated without a GPU.
        second, end = pods["booked-2"], datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=10)
        in_tokyo = {"terminate-at": (end + timedelta(hours=9)).replace(tzinfo=None).isoformat() + "+09:00"}
        path = f"/api/v1/namespaces/{ours}/pods/booked-2"
        carrel.api.call("PATCH", path, {"metadata": {"annotations": in_tokyo}})
        after = successor(carrel, ours, of=second)
        ended = instant(after["metadata"]["creationTimestamp"], "pod", "creationTimestamp")
        assert end <= ended, "never early"
        assert carrel.told(ours, "booked-2")["NVIDIA_VISIBLE_DEVICES"] == ""
        assert "its booking ends at" in events(carrel, ours, second)["BookingEnds"]

        # The card that is free now goes to whoever comes next.
        _, told = carrel.run(ours, a_gpu_pod("next", LOW))
        assert told["NVIDIA_VISIBLE_DEVICES"] == its_card


def test_a_pod_of_a_controller_is_evicted_and_a_disruption_budget_is_heeded(carrel: CarrelNode) -> None:
    selector = {"matchLabels": {"app": "serve"}}
    manifest = a_gpu_pod("serve", LOW)
    template = {"metadata": {"labels": {"app": "serve"}, "annotations": LOW}, "spec": manifest["spec"]}
    template["spec"]["restartPolicy"] = "Always"
    with namespace(carrel.api) as ours:
        apps, policy = f"/apis/apps/v1/namespaces/{ours}/replicasets", f"/apis/policy/v1beta1/namespaces/{ours}"
        carrel.api.call(
            "POST", apps, {"metadata": {"name": "serve"}, "spec": {"selector": selector, "template": template}}
        )
        carrel.api.call(
            "POST",
            f"{policy}/poddisruptionbudgets",
            {"metadata": {"name": "all"}, "spec": {"minAvailable": 1, "selector": selector}},
        )
        served = eventually(
            lambda: [each for each in carrel.pods(ours).values() if each["status"]["phase"] == "Running"]
        )
        wait_for_phase(carrel.api, ours, served[0]["metadata"]["name"], "Running")
        carrel.run(ours, a_gpu_pod("other", high()))
        create(carrel.api, ours, a_gpu_pod("booked", high()))

        eventually(lambda: "disruption budget" in events(carrel, ours, served[0]).get("RevocationHeldUp", ""), LIMIT_S)
        assert not carrel.pods(ours)["booked"]["spec"].get("nodeName")
        carrel.api.call("DELETE", f"{policy}/poddisruptionbudgets/all")

        eventually(lambda: carrel.pods(ours)["booked"]["status"]["phase"] == "Running", LIMIT_S)
        names = [name for name in carrel.pods(ours) if name.startswith("serve-")]
        assert served[0]["metadata"]["name"] not in names, "it was evicted"
        assert len(names) == 1, "its controller has replaced it, and nobody else"
