"""About whom a real API server asks the webhook, and what becomes of pods while it is down."""

import asyncio
import json
import os
from collections.abc import Iterator
from random import Random

import pytest

from carrel.admission.options import AdmissionOptions
from carrel.dialects.options import HideFrom
from carrel.kubernetes.objects.resources import MUTATING_WEBHOOKS
from tests.e2e.pods import eventually
from tests.e2e.rules_cluster import EVE, GPU, MANY, PODS, Json, RulesCluster, a_plain_pod, a_pod, rules_cluster
from tests.e2e.webhook import unadmitted_pod
from tests.kit.any_pod import any_pod
from tests.kit.reviews import Reviewed, ReviewedCluster

GENERATED = 10_000 if os.environ.get("CARREL_SWEEP") else 400
GPU_PODS, VISIBLE_GPUS, EVICTIONS = "gpu-pods.carrel.dev", "visible-gpus.carrel.dev", "evictions.carrel.dev"
SHOWN = AdmissionOptions(hide_from=HideFrom.GPU_PODS)


@pytest.fixture(scope="module")
def rules() -> Iterator[RulesCluster]:
    with rules_cluster("webhook-entries") as cluster:
        yield cluster


def test_the_webhook_is_asked_about_every_pod_that_it_would_change_or_refuse(rules: RulesCluster) -> None:
    random, concerned, hidden, asked = Random(11), 0, 0, 0
    for number in range(GENERATED):
        pod = any_pod(random)
        pod["metadata"]["name"] = f"any-{number}"
        shown: Reviewed = asyncio.run(ReviewedCluster(options=SHOWN).create(pod, EVE))
        reviewed: Reviewed = asyncio.run(ReviewedCluster().create(pod, EVE))
        entries = rules.asked_by(pod)
        if not shown.allowed or shown.patch:
            concerned += 1
            assert GPU_PODS in entries, json.dumps(pod)
        elif reviewed.patch:
            hidden += 1
            assert VISIBLE_GPUS in entries, json.dumps(pod)
        asked += bool(entries)
    assert GENERATED / 4 < concerned < asked < GENERATED and hidden > GENERATED / 50, "they are of every kind"


@pytest.mark.parametrize(
    ("container", "spec"),
    [
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, {}),
        ({"envFrom": [{"configMapRef": {"name": "settings"}}]}, {}),
        ({"envFrom": [{"secretRef": {"name": "settings"}}]}, {}),
        ({}, {"runtimeClassName": "nvidia"}),
        ({}, {"runtimeClassName": "fast"}),
        ({}, {"schedulerName": "kai-scheduler"}),
        ({}, {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}),
        ({"env": [{"name": f"V{number}", "value": "x"} for number in range(60_000)]}, {}),
    ],
    ids=[
        "a variable",
        "a ConfigMap",
        "a Secret",
        "NVIDIA's RuntimeClass",
        "another RuntimeClass",
        "KAI",
        "a resource claim",
        "too much to search",
    ],
)
@pytest.mark.parametrize("group", ["containers", "initContainers"])
def test_the_webhook_is_asked_about_pods_that_may_see_a_gpu(
    rules: RulesCluster, container: Json, spec: Json, group: str
) -> None:
    pod = a_plain_pod("may-see")
    others = [{"name": "other", "image": "work", **container}]
    pod["spec"] |= {group: [*pod["spec"].get(group, []), *others], **spec}

    assert rules.asked_by(pod) == {VISIBLE_GPUS}
    assert rules.post(pod, dry=True)[0] == 201
    assert not rules.asked(pod, rules.carrel)
    pod["metadata"]["annotations"] = {"carrel.dev/tier": "booked"}
    assert rules.asked_by(pod) == {GPU_PODS}, "once is enough"


def test_the_webhook_is_asked_about_a_pod_with_too_many_containers_to_search(rules: RulesCluster) -> None:
    pod = a_plain_pod("many-parts")
    pod["spec"]["initContainers"] = [{"name": f"c{number}", "image": "work"} for number in range(20_000)]

    assert rules.asked_by(pod) == {VISIBLE_GPUS}


def test_the_webhook_is_not_asked_about_tools_that_must_see_gpus(rules: RulesCluster) -> None:
    pod = a_plain_pod("tool", runtimeClassName="nvidia")
    for name, labels in (("gpu-operator", {}), ("of-an-admin", {"carrel.dev/sees-gpus": "true"}), ("of-a-lab", {})):
        rules.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        asked = {VISIBLE_GPUS} if name == "of-a-lab" else set()
        assert rules.asked_by(pod, path=f"/api/v1/namespaces/{name}/pods") == asked


@pytest.mark.parametrize("count", [0, 1, 1_000], ids=["no containers", "one container", "as many as Carrel reads"])
def test_the_webhook_is_not_asked_about_other_pods(rules: RulesCluster, count: int) -> None:
    pod = a_pod("plain", annotations={"mine": "x"}, labels={"app": "x"})
    environment = [{"name": f"V{number}", "value": "x"} for number in range(20)]
    container = {"image": "work", "env": environment, "resources": {"limits": {"cpu": "1"}}}
    pod["spec"] |= {"containers": [{"name": f"c{number}", **container} for number in range(count)]}
    pod["spec"]["schedulerName"] = "default-scheduler"

    status, answer = rules.post(pod, dry=True)

    assert not rules.asked(pod)
    assert status == (201 if count else 422), answer
    assert count or "spec.containers: Required value" in answer["message"]


def test_a_pod_with_very_many_annotations_is_not_searched_but_asked_about(rules: RulesCluster) -> None:
    """A condition that costs too much would refuse the pod."""
    for group in ("annotations", "labels"):
        few, many = ({f"k{number}": "" for number in range(count)} for count in (1_000, MANY))
        assert not rules.asked(a_pod("few", **{group: few}))
        assert rules.asked(a_pod("many", **{group: many}))
        status, answer = rules.post(a_pod("many", **{group: many}), dry=True)
        assert status == 201, answer


def test_a_pod_has_no_uid_when_it_is_reviewed(rules: RulesCluster) -> None:
    """So the webhook's seal cannot be over it."""
    assert rules.asked(unadmitted_pod("without-uid"), rules.eve)
    assert rules.witness.uids == {""}


def test_carrels_own_pods_are_not_asked_about(rules: RulesCluster) -> None:
    assert rules.asked(unadmitted_pod("of-eve"), rules.eve)
    assert not rules.asked(unadmitted_pod("of-carrel"), rules.carrel)
    assert rules.post(unadmitted_pod("of-carrel"), rules.carrel, dry=True)[0] == 201


def test_a_debug_container_is_asked_about_where_the_pod_has_a_gpu(rules: RulesCluster) -> None:
    debugger = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "work"}]}}
    for name, limits in (("debugged", GPU), ("debugged-cpu", {})):
        assert rules.post(a_pod(name, limits=limits))[0] == 201
        rules.witness.names.discard(name)
        status, answer = rules.eve.call("PATCH", f"{PODS}/{name}/ephemeralcontainers", debugger)
        assert status == 200, answer
        assert (name in rules.witness.names) is bool(limits)


def test_without_the_webhook_gpu_pods_are_refused_with_the_reason_and_others_are_created(rules: RulesCluster) -> None:
    path = MUTATING_WEBHOOKS.path(name="carrel")
    real = rules.api.call("GET", path)["webhooks"]
    nobody = {**rules.witness.client_config, "url": "https://127.0.0.1:9/mutate"}
    rules.api.call("PATCH", path, {"webhooks": [{**entry, "clientConfig": nobody} for entry in real]})
    settings = a_plain_pod("settings")
    settings["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "settings"}}]
    try:
        eventually(lambda: rules.post(unadmitted_pod("of-eve"), dry=True)[0] == 500)
        status, answer = rules.post(unadmitted_pod("of-eve"), dry=True)
        assert status == 500 and f'failed calling webhook "{GPU_PODS}"' in answer["message"], answer
        assert rules.post(a_pod("forged", annotations={"carrel.dev/tier": "booked"}), dry=True)[0] == 500
        for other in (a_plain_pod("plain"), settings, a_plain_pod("image", runtimeClassName="nvidia")):
            assert rules.post(other, dry=True)[0] == 201
        assert rules.post(unadmitted_pod("of-carrel"), rules.carrel, dry=True)[0] == 201
    finally:
        rules.api.call("PATCH", path, {"webhooks": real})
    eventually(lambda: rules.post(a_pod("of-eve", limits=GPU), dry=True)[0] == 201)


def test_before_the_webhook_has_answered_nothing_is_refused_and_no_scheduler_is_asked_for(rules: RulesCluster) -> None:
    """As the chart installs it: the entry has no rules. The webhook writes them when it can answer."""
    path = MUTATING_WEBHOOKS.path(name="carrel")
    real = rules.api.call("GET", path)["webhooks"]
    assert rules.post(unadmitted_pod("of-eve"), dry=True)[0] == 403, "it is for a scheduler that knows no GPUs"
    rules.api.call("PATCH", path, {"webhooks": [{**real[0], "rules": []}, *real[1:]]})
    try:
        eventually(lambda: rules.post(unadmitted_pod("of-eve"), dry=True)[0] == 201)
        assert GPU_PODS not in rules.asked_by(unadmitted_pod("meanwhile"))
        assert rules.post(a_plain_pod("plain"), dry=True)[0] == 201
    finally:
        rules.api.call("PATCH", path, {"webhooks": real})
    eventually(lambda: rules.post(unadmitted_pod("of-eve"), dry=True)[0] == 403)


def test_where_an_image_alone_may_see_gpus_the_webhook_is_asked_about_all_pods(rules: RulesCluster) -> None:
    """As the manual says: one condition is deleted."""
    path = MUTATING_WEBHOOKS.path(name="carrel")
    real = rules.api.call("GET", path)["webhooks"]
    gpu_pods, visible, evictions = real
    left = [each for each in visible["matchConditions"] if each["name"] != "may-see-gpus"]
    rules.api.call("PATCH", path, {"webhooks": [gpu_pods, {**visible, "matchConditions": left}, evictions]})
    try:
        eventually(lambda: rules.asked_by(a_plain_pod("plain")) == {VISIBLE_GPUS})
    finally:
        rules.api.call("PATCH", path, {"webhooks": real})
    eventually(lambda: not rules.asked(a_plain_pod("plain")))


def test_the_webhook_is_asked_about_evictions_that_give_a_pod_very_long(rules: RulesCluster) -> None:
    assert rules.post(a_plain_pod("evicted"))[0] == 201
    for grace, asked in ((301, {EVICTIONS}), (300, set()), (None, set())):
        options = {} if grace is None else {"deleteOptions": {"gracePeriodSeconds": grace}}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"}, **options}
        assert rules.asked_by(eviction, path=f"{PODS}/evicted/eviction") == asked, grace
