"""Which changes a real API server refuses on its own, by Carrel's policies."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.dialects.protected_keys import Writer
from carrel.kubernetes.objects.resources import (
    CRDS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    ROLE_BINDINGS,
    SERVICE_ACCOUNTS,
    SUBJECT_ACCESS_REVIEWS,
    VALIDATING_POLICIES,
    Resource,
)
from carrel.kubernetes.objects.resources import PODS as POD
from carrel.manifests import crds
from carrel.resource_claims.objects import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.e2e.pods import eventually
from tests.e2e.rules_cluster import EVE, GPU, MANY, PODS, Json, RulesCluster, a_pod, rules_cluster
from tests.e2e.webhook import POLICIES, RecordingWebhook, UserClient, unadmitted_pod
from tests.kit.forged import PROTECTED, PROTECTED_LABELS
from tests.kit.key_writers import written_by

AGENT = "system:serviceaccount:carrel:carrel-agent"
MAIAS_TERMINATOR = "system:serviceaccount:carrel:pod-terminator"
SPEC_ONLY = ("/ephemeralcontainers", "/resize")
"""Here the API server takes changes of the spec, and drops those of the metadata before anybody is asked."""
WHEREVER = ("", "/status", *SPEC_ONLY)


@pytest.fixture(scope="module")
def rules() -> Iterator[RulesCluster]:
    with rules_cluster("rules") as cluster:
        yield cluster


def test_the_api_server_has_no_complaint_about_the_policies(rules: RulesCluster) -> None:
    for name in ("carrel-protected-keys", "carrel-gpu-pods", "carrel-bookings", "carrel-agents"):
        path = f"{POLICIES['ValidatingAdmissionPolicy']}/{name}"

        def checked(path: str = path) -> Json | None:
            seen: Json = rules.api.call("GET", path)
            return seen if seen.get("status", {}).get("observedGeneration") == seen["metadata"]["generation"] else None

        found = eventually(checked)
        assert found is not None
        assert found["status"]["typeChecking"] == {}, json.dumps(found["status"], indent=2)


@pytest.fixture(scope="module")
def guarded(rules: RulesCluster) -> str:
    """A pod with every protected key, made by Carrel."""
    pod = a_pod("guarded", limits=GPU, annotations=PROTECTED, labels=PROTECTED_LABELS)
    status, answer = rules.post(pod, rules.carrel)
    assert status == 201, answer
    return f"{PODS}/guarded"


def test_other_programs_in_carrels_namespace_are_treated_as_any_user(rules: RulesCluster, guarded: str) -> None:
    maias, extender = UserClient(rules.api, MAIAS_TERMINATOR), rules.accounts[Writer.EXTENDER]
    written = {"metadata": {"annotations": {"carrel.dev/devices": "GPU-of-another-pod"}}}

    assert rules.asked(unadmitted_pod("copied"), maias)
    assert maias.call("PATCH", f"{guarded}?dryRun=All", written)[0] == 403
    assert extender.call("PATCH", f"{guarded}?dryRun=All", written)[0] == 200, "it writes what a pod was given"
    assert rules.asked(unadmitted_pod("made"), extender), "it makes no pods"


@pytest.mark.parametrize("where", WHEREVER)
@pytest.mark.parametrize("key", [*PROTECTED, *PROTECTED_LABELS, "devices.carrel.dev/new", "runai-gpu-group/new"])
def test_a_protected_key_is_not_written_changed_or_removed_by_others(
    rules: RulesCluster, guarded: str, key: str, where: str
) -> None:
    group = "labels" if key in PROTECTED_LABELS or key.startswith("runai-gpu-group") else "annotations"
    is_there = not key.endswith("/new")
    for value in ("forged", *([None] if is_there else [])):
        forged = {"metadata": {group: {key: value}}}
        status, answer = rules.eve.call("PATCH", f"{guarded}{where}?dryRun=All", forged)
        if where in SPEC_ONLY:
            assert status == 200 and answer["metadata"][group] == rules.api.call("GET", guarded)["metadata"][group]
            continue
        assert status == 403, answer
        assert f"pod default/guarded: only Carrel may write or remove {key}, and you are {EVE}" in answer["message"]
        assert rules.trusted.call("PATCH", f"{guarded}{where}?dryRun=All", forged)[0] == 200
        for account, who in rules.accounts.items():
            own = {word.removesuffix("new") for word in (key, f"{key.partition('/')[0]}/*")} & written_by(account)
            status, answer = who.call("PATCH", f"{guarded}{where}?dryRun=All", forged)
            assert status == (200 if own else 403), (account, answer)


def test_gpushares_own_plugin_says_that_a_pod_has_its_share_and_nothing_else(rules: RulesCluster, guarded: str) -> None:
    """Its exact write at Allocate. If it were refused, the plugin would start the container without a GPU."""
    plugin = UserClient(rules.api, "system:serviceaccount:kube-system:gpushare-device-plugin")
    elsewhere = UserClient(rules.api, "system:serviceaccount:default:gpushare-device-plugin")
    marks = {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1763380000000000000"}
    write: Json = {"metadata": {"annotations": marks}}
    assert plugin.call("PATCH", f"{guarded}?dryRun=All", write)[0] == 200
    assert elsewhere.call("PATCH", f"{guarded}?dryRun=All", write)[0] == 403
    write["metadata"]["annotations"] = {**marks, "ALIYUN_COM_GPU_MEM_IDX": "1"}
    status, answer = plugin.call("PATCH", f"{guarded}?dryRun=All", write)
    assert status == 403 and "only Carrel may write or remove ALIYUN_COM_GPU_MEM_IDX" in answer["message"]


@pytest.mark.parametrize("path", ["pods/unbound/binding", "bindings"])
def test_a_binding_cannot_write_protected_keys(rules: RulesCluster, path: str) -> None:
    rules.post(a_pod("unbound", limits=GPU))
    for group, key, account in (
        ("annotations", "carrel.dev/devices", Writer.EXTENDER),
        ("labels", "runai-gpu-group", Writer.CONTROLLER),
    ):
        binding: Json = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "n1"}}
        binding["metadata"] = {"name": "unbound", group: {key: "GPU-0"}}
        where = f"/api/v1/namespaces/default/{path}?dryRun=All"
        status, answer = rules.eve.call("POST", where, binding)
        assert status == 403 and f"only Carrel may write or remove {key}" in answer["message"], answer
        assert {who: client.call("POST", where, binding)[0] for who, client in rules.accounts.items()} == {
            who: 201 if who is account else 403 for who in rules.accounts
        }
        del binding["metadata"][group]
        assert rules.eve.call("POST", where, binding)[0] == 201


@pytest.mark.parametrize(
    ("where", "account", "key", "allowed"),
    [
        ("kai-resource-reservation", "kai-resource-reservation", "run.ai/reserve_for_gpu_index", True),
        ("runai-reservation", "runai-reservation", "run.ai/reserve_for_gpu_index", True),
        ("kai-resource-reservation", "kai-resource-reservation", "carrel.dev/lease", False),
        ("kai-resource-reservation", "default", "run.ai/reserve_for_gpu_index", False),
        ("default", "default", "run.ai/reserve_for_gpu_index", False),
    ],
    ids=["its GPU", "its GPU, as KAI spelled it before", "anything else", "another account", "another namespace"],
)
def test_a_reservation_pod_may_say_which_gpu_it_has(
    rules: RulesCluster, where: str, account: str, key: str, allowed: bool
) -> None:
    if where != "default":
        rules.trusted.call("POST", "/api/v1/namespaces", {"metadata": {"name": where}})
    pods = f"/api/v1/namespaces/{where}/pods"
    rules.carrel.call("POST", pods, a_pod("reservation"))
    itself = UserClient(rules.api, f"system:serviceaccount:{where}:{account}")

    status, answer = itself.call(
        "PATCH", f"{pods}/reservation?dryRun=All", {"metadata": {"annotations": {key: "GPU-1"}}}
    )

    assert status == (200 if allowed else 403), answer


@pytest.mark.parametrize(
    "key",
    [
        "carrel.dev/gpu-model",
        "carrel.dev/gpu-count",
        "carrel.dev/gpu-memory-mib",
        "gpu-fraction",
        "gpu-memory",
        "gpu-fraction-num-devices",
        "gpu-fraction-container-name",
        "gpu.scheduling/claim",
    ],
)
def test_what_a_pod_asks_for_cannot_be_changed_later(rules: RulesCluster, guarded: str, key: str) -> None:
    """Else the tier that was given for one GPU could be used for others."""
    status, answer = rules.eve.call("PATCH", f"{guarded}?dryRun=All", {"metadata": {"annotations": {key: "1"}}})

    assert status == 403, answer
    assert f"what a pod asks for is settled when it is made ({key}); make another" in answer["message"]


def test_all_other_keys_may_still_be_changed(rules: RulesCluster, guarded: str) -> None:
    mine = {"metadata": {"annotations": {"mine": "x"}, "labels": {"app": "x"}}}
    gang = {"metadata": {"annotations": {"pod-group-name": "g", "carrel.dev/gang-size": "2"}}}
    kubelets = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    for where, change in (("", mine), ("", gang), ("/status", kubelets)):
        status, answer = rules.eve.call("PATCH", f"{guarded}{where}?dryRun=All", change)
        assert status == 200, answer


def test_the_extender_nominates_a_pod_for_a_node_and_wakes_it_by_one_write(rules: RulesCluster, guarded: str) -> None:
    extender, woken = rules.accounts[Writer.EXTENDER], {"carrel.dev/woken-at": "2026-11-17T12:00:00.000000Z"}
    nomination = {"metadata": {"annotations": woken}, "status": {"nominatedNodeName": "n1"}}

    status, answer = extender.call("PATCH", f"{guarded}/status?dryRun=All", nomination)

    assert status == 200, answer
    assert answer["status"]["nominatedNodeName"] == "n1"
    assert answer["metadata"]["annotations"].items() >= woken.items()


def test_a_gpu_pod_is_not_given_longer_to_end_than_its_manifest_says(rules: RulesCluster) -> None:
    """A pod on a node: one that is on none ends at once."""
    for name, notes in (("with-gpu", {"carrel.dev/tier": "opportunistic"}), ("without", {})):
        pod = a_pod(name, annotations=notes)
        pod["spec"] |= {"nodeName": "some-node", "terminationGracePeriodSeconds": 40}
        assert rules.post(pod, rules.carrel)[0] == 201
    only_asked: Json = {"dryRun": ["All"]}
    longer, path = {**only_asked, "gracePeriodSeconds": 41}, f"{PODS}/with-gpu"

    eventually(lambda: rules.eve.call("DELETE", path, longer)[0] == 403)  # this policy may work a moment later
    status, answer = rules.eve.call("DELETE", path, longer)
    assert status == 403, answer
    assert "is not given longer to end than its manifest says (40 seconds)" in answer["message"]
    assert rules.trusted.call("DELETE", path, longer)[0] == 200
    for allowed in ({"gracePeriodSeconds": 40}, {"gracePeriodSeconds": 0}, {}):
        assert rules.eve.call("DELETE", path, {**only_asked, **allowed})[0] == 200
    assert rules.eve.call("DELETE", f"{PODS}/without", longer)[0] == 200


def test_objects_from_before_carrel_can_still_be_changed(rules: RulesCluster) -> None:
    """Its status is written, it is changed and it ends, as before; only its protected keys are protected now."""
    before = f"{PODS}/before"
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    assert rules.eve.call("PATCH", f"{before}/status", running)[0] == 200
    assert rules.eve.call("PATCH", before, {"metadata": {"annotations": {"mine": "x"}}})[0] == 200
    assert rules.eve.call("PATCH", before, {"metadata": {"annotations": {"terminate-at": "x"}}})[0] == 403
    assert rules.eve.call("DELETE", f"{before}?dryRun=All")[0] == 200


def test_the_status_of_a_pod_with_very_many_annotations_is_written(rules: RulesCluster) -> None:
    status, answer = rules.post(a_pod("wordy", annotations={f"k{number}": "" for number in range(MANY)}))
    assert status == 201, answer

    running = {"status": {"phase": "Running"}}
    status, answer = rules.eve.call("PATCH", f"{PODS}/wordy/status", running)
    assert status == 200, answer


def test_only_carrel_and_trusted_users_write_bookings(rules: RulesCluster) -> None:
    (definition,) = [each for each in crds() if each["spec"]["names"]["kind"] == BOOKINGS.kind]
    rules.api.call("POST", CRDS.path(), definition)
    spec = {"user": EVE, "gpus": 8, "start": "2026-01-01T00:00:00Z", "end": "2099-01-01T00:00:00Z"}
    booking = {"apiVersion": BOOKINGS.api_version, "kind": BOOKINGS.kind, "metadata": {"name": "b1"}, "spec": spec}
    path, one = BOOKINGS.path(), BOOKINGS.path(name="b1")
    eventually(lambda: rules.carrel.call("POST", f"{path}?dryRun=All", booking)[0] == 201)
    assert rules.carrel.call("POST", path, booking)[0] == 201
    another = {**booking, "metadata": {"name": "b2"}}
    attempts: list[tuple[str, str, Json | None]] = [
        ("POST", f"{path}?dryRun=All", another),
        ("PATCH", f"{one}?dryRun=All", {"spec": {"gpus": 9}}),
        ("PATCH", f"{one}/status?dryRun=All", {"status": {"used": 0}}),
        ("DELETE", f"{one}?dryRun=All", None),
        ("DELETE", f"{path}?dryRun=All", None),
    ]
    for method, where, body in attempts:
        status, answer = rules.eve.call(method, where, body)
        assert status == 403, answer
        assert f"only Carrel writes bookings, and you are {EVE}" in answer["message"]
        assert "change a booking on the booking page" in answer["message"]
        for who in (rules.carrel, rules.trusted):
            status, answer = who.call(method, where, body)
            assert status in (200, 201), answer


# --- agents ----------------------------------------------------------------------------------------------------------


def test_an_agent_writes_about_its_own_node_only(rules: RulesCluster) -> None:
    """By the token of a pod on node a1, as the kubelet gives it to the agent there."""
    agent = an_agent_on(rules, "a1")
    nameless = UserClient(rules.api, AGENT, rules.token({}))
    for name in ("a1", "a2"):
        rules.api.call("POST", NODES.path(), {"metadata": {"name": name}})
        pod = a_pod(f"on-{name}", annotations={"ALIYUN_COM_GPU_MEM_ASSIGNED": "false"}, limits=GPU)
        pod["spec"]["nodeName"] = name
        assert rules.post(pod, rules.carrel)[0] == 201
        report: Json = {"apiVersion": GPU_NODE_STATUSES.api_version, "kind": GPU_NODE_STATUSES.kind}
        report |= {"metadata": {"name": name}, "spec": {"nodeName": name}}
        amounts = {"status": {"capacity": {"aliyun.com/gpu-count": "1"}}}
        assigned = {"metadata": {"annotations": {"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}}}
        attempts = (
            ("POST", GPU_NODE_STATUSES.path(), report),
            ("PATCH", f"{GPU_NODE_STATUSES.path(name=name)}/status", {"status": {"total": 1}}),
            ("PATCH", f"{NODES.path(name=name)}/status", amounts),
            ("PATCH", f"{PODS}/on-{name}", assigned),
        )
        for method, path, body in attempts:
            for who, whose in ((nameless, "no node"), (agent, "node a1")):
                status, answer = who.call(method, path, body)
                if who is agent and name == "a1":
                    assert status in (200, 201), answer
                    continue
                assert status == 403, answer
                assert f"this token is for {whose}, and " in answer["message"], answer
                assert f"is about node {name}" in answer["message"], answer
            if method == "POST" and name != "a1":
                rules.api.call(method, path, body)
    tier = {"metadata": {"annotations": {"carrel.dev/tier": "booked"}}}
    status, answer = agent.call("PATCH", f"{PODS}/on-a1", tier)
    assert status == 403 and "only Carrel may write or remove carrel.dev/tier" in answer["message"], answer


def an_agent_on(rules: RulesCluster, node: str) -> UserClient:
    """With its role, and a token that is bound to its pod."""
    (definition,) = [each for each in crds() if each["spec"]["names"]["kind"] == GPU_NODE_STATUSES.kind]
    rules.api.call("POST", CRDS.path(), definition)
    rules.install_roles("carrel-agent")
    spec = {"nodeName": node, "serviceAccountName": "carrel-agent", "containers": [{"name": "agent", "image": "work"}]}
    pod = rules.api.call("POST", "/api/v1/namespaces/carrel/pods", {"metadata": {"name": "agent"}, "spec": spec})
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "agent", "uid": pod["metadata"]["uid"]}
    agent = UserClient(rules.api, AGENT, rules.token({"boundObjectRef": bound}))
    eventually(lambda: agent.call("GET", GPU_NODE_STATUSES.path(name="none"))[0] == 404)
    return agent


# --- what needs no rule: nobody has the right ------------------------------------------------------------------------

MALLORY = "mallory@lab.example"
NOT_THEIRS = {
    "the record of a GPU": ("update", LEASES, "carrel", ""),
    "a new record of a GPU": ("create", LEASES, "carrel", ""),
    "the report of a node": ("update", GPU_NODE_STATUSES, "", ""),
    "a booking": ("create", BOOKINGS, "", ""),
    "other people's bookings": ("list", BOOKINGS, "", ""),
    "a node": ("patch", NODES, "", ""),
    "the marks of their own namespace": ("patch", NAMESPACES, "default", ""),
    "the agents' token": ("create", SERVICE_ACCOUNTS, "carrel", "token"),
    "the webhook": ("delete", MUTATING_WEBHOOKS, "", ""),
    "the policies": ("delete", VALIDATING_POLICIES, "", ""),
    "a claim in Carrel's namespace": ("create", RESOURCE_CLAIMS, "carrel", ""),
    "what their own claim has got": ("update", RESOURCE_CLAIMS, "default", "status"),
    "the devices of a node": ("create", RESOURCE_SLICES, "", ""),
    "a class of devices": ("create", DEVICE_CLASSES, "", ""),
    "the node of their own pod": ("create", POD, "default", "binding"),
    "the status of their own pod": ("patch", POD, "default", "status"),
}


@pytest.fixture(scope="module")
def mallory(rules: RulesCluster) -> str:
    """The admin of a namespace, by Kubernetes' own role, to which Carrel's roles may have added."""
    rules.install_roles()
    subject = {"kind": "User", "name": MALLORY, "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "ClusterRole", "name": "admin", "apiGroup": "rbac.authorization.k8s.io"}
    binding = {"metadata": {"name": "mallory"}, "subjects": [subject], "roleRef": role}
    rules.api.call("POST", ROLE_BINDINGS.path("default"), binding)
    eventually(lambda: may(rules, MALLORY, "create", POD, "default"))  # the role has got its rules
    return MALLORY


def may(rules: RulesCluster, who: str, verb: str, what: Resource[Any], namespace: str, subresource: str = "") -> bool:
    where = {"group": what.group, "resource": what.plural, "subresource": subresource, "namespace": namespace}
    spec = {"user": who, "resourceAttributes": {"verb": verb, **where}}
    return bool(rules.api.call("POST", SUBJECT_ACCESS_REVIEWS.path(), {"spec": spec})["status"]["allowed"])


@pytest.mark.parametrize("asked", NOT_THEIRS.values(), ids=NOT_THEIRS)
def test_the_admin_of_a_namespace_may_not_write_what_carrel_decides_by(
    rules: RulesCluster, mallory: str, asked: tuple[str, Resource[Any], str, str]
) -> None:
    assert not may(rules, mallory, *asked)


# --- pods that the webhook has not seen ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "notes", "asked"),
    [
        ({"nvidia.com/gpu": "1"}, {}, "nvidia.com/gpu"),
        ({"aliyun.com/gpu-mem": "8138"}, {}, "aliyun.com/gpu-mem"),
        ({}, {"gpu-fraction": "0.5"}, "gpu-fraction"),
        ({}, {"carrel.dev/gpu-count": "2"}, "carrel.dev/gpu-count"),
        ({"nvidia.com/gpu": "0"}, {"mine": "x"}, ""),
        ({"cpu": "1"}, {}, ""),
    ],
    ids=["a whole GPU", "memory", "a fraction", "Carrel's annotations", "explicitly no GPU", "no GPU"],
)
@pytest.mark.parametrize("group", ["containers", "initContainers"])
def test_a_gpu_that_another_webhook_asks_for_is_refused(
    rules: RulesCluster, limits: Json, notes: Json, asked: str, group: str
) -> None:
    """kube-apiserver asks no webhook again whose conditions left the pod out the first time."""
    container = {"name": "added", "image": "work", "resources": {"limits": limits, "requests": limits}}

    def change(pod: Json) -> list[Json]:
        there = pod["spec"].get(group) or []
        if any(each["name"] == "added" for each in there):
            return []
        notes_too = {**(pod["metadata"].get("annotations") or {}), **notes}
        return [
            {"op": "add", "path": f"/spec/{group}", "value": [*there, container]},
            {"op": "add", "path": "/metadata/annotations", "value": notes_too},
        ]

    other = RecordingWebhook(change)
    webhook = {key: value for key, value in rules.configuration["webhooks"][0].items() if key != "matchConditions"}
    webhook |= {"name": "other.lab.example", "clientConfig": other.client_config, "failurePolicy": "Ignore"}
    configuration = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
    path = MUTATING_WEBHOOKS.path()
    rules.api.call("POST", path, {**configuration, "metadata": {"name": "other"}, "webhooks": [webhook]})
    try:
        pod = a_pod("plain")
        pod["spec"]["schedulerName"] = "default-scheduler"
        eventually(lambda: rules.post(pod, dry=True) and "plain" in other.names)
        status, answer = rules.post(pod, dry=True)
    finally:
        rules.api.call("DELETE", f"{path}/other")
        other.close()

    assert status == (403 if asked else 201), answer
    assert not asked or f"the pod asks for a GPU ({asked}), and Carrel has not seen that" in answer["message"]
