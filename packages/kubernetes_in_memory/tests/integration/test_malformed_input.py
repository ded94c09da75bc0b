"""Bad input is refused with an error that names the object, the field, the value and what would be right."""

from typing import Any

import pytest

from kubernetes_in_memory.messages import HttpRequest
from packages.kubernetes_in_memory.tests.integration.caller import PODS, Caller, Json, config_map, pod


def container(**changes: Any) -> list[Json]:
    return [{"name": "main", "image": "busybox", **changes}]


def resources(**changes: Any) -> list[Json]:
    return container(resources=changes)


@pytest.mark.parametrize(
    ("spec", "field", "told"),
    [
        pytest.param({"containers": []}, "spec.containers", "Required value", id="no containers"),
        pytest.param({"containers": [{"image": "x"}]}, "spec.containers[0].name", "Required", id="no name"),
        pytest.param({"containers": [{"name": "x"}]}, "spec.containers[0].image", "Required", id="no image"),
        pytest.param({"containers": container(name="Up")}, "spec.containers[0].name", '"Up"', id="upper case name"),
        pytest.param({"containers": container() * 2}, "spec.containers[1].name", "Duplicate", id="the same name twice"),
        pytest.param(
            {"containers": container(env=[{"name": "A=B"}])}, "spec.containers[0].env[0].name", '"A=B"', id="env with ="
        ),
        pytest.param(
            {"containers": resources(limits={"cpu": "many"})},
            "spec.containers[0].resources.limits[cpu]",
            '"many"',
            id="a quantity that is none",
        ),
        pytest.param(
            {"containers": resources(limits={"memory": "-1"})},
            "spec.containers[0].resources.limits[memory]",
            "greater than or equal to 0",
            id="less than nothing",
        ),
        pytest.param(
            {"containers": resources(limits={"nvidia.com/gpu": "0.5"})},
            "spec.containers[0].resources.limits[nvidia.com/gpu]",
            "integer",
            id="half a GPU",
        ),
        pytest.param(
            {"containers": resources(requests={"nvidia.com/gpu": "1"})},
            "spec.containers[0].resources.limits",
            "nvidia.com/gpu",
            id="a GPU requested and not limited",
        ),
        pytest.param(
            {"containers": resources(requests={"nvidia.com/gpu": "1"}, limits={"nvidia.com/gpu": "2"})},
            "spec.containers[0].resources.requests",
            "must be equal to nvidia.com/gpu limit of 2",
            id="GPUs cannot be overcommitted",
        ),
        pytest.param(
            {"containers": resources(requests={"cpu": "2"}, limits={"cpu": "1"})},
            "spec.containers[0].resources.requests",
            "must be less than or equal to cpu limit of 1",
            id="request above limit",
        ),
        pytest.param(
            {"containers": resources(limits={"gpus": "1"})},
            "spec.containers[0].resources.limits[gpus]",
            "fully qualified",
            id="a resource without a domain",
        ),
        pytest.param(
            {"containers": container(volumeMounts=[{"name": "v", "mountPath": "/v"}])},
            "spec.containers[0].volumeMounts[0].name",
            'Not found: "v"',
            id="a mount of no volume",
        ),
        pytest.param(
            {"containers": container(ports=[{"containerPort": 70000}])},
            "spec.containers[0].ports[0].containerPort",
            "70000",
            id="a port too high",
        ),
        pytest.param({"restartPolicy": "Maybe"}, "spec.restartPolicy", '"Maybe"', id="unknown restart policy"),
        pytest.param(
            {"terminationGracePeriodSeconds": -1}, "spec.terminationGracePeriodSeconds", "-1", id="grace below 0"
        ),
        pytest.param(
            {"tolerations": [{"operator": "Like", "key": "a"}]},
            "spec.tolerations[0].operator",
            '"Like"',
            id="toleration",
        ),
        pytest.param({"nodeSelector": {"a b": "c"}}, "spec.nodeSelector", "a b=c", id="node selector"),
    ],
)
async def test_a_malformed_pod_is_refused_with_its_field(call: Caller, spec: Json, field: str, told: str) -> None:
    answer = await call("POST", PODS, pod(**spec))
    assert (answer.status, answer.body["reason"]) == (422, "Invalid")
    assert field in answer.fields
    assert told in answer.message
    assert 'Pod "train" is invalid: ' in answer.message
    assert (await call("GET", PODS)).body["items"] == []


async def test_all_errors_are_reported_at_once(call: Caller) -> None:
    wrong = pod(name="Not_a_name", containers=[{"name": "x", "resources": {"limits": {"cpu": "a", "b": "1"}}}])
    answer = await call("POST", PODS, wrong)
    assert {
        "metadata.name",
        "spec.containers[0].image",
        "spec.containers[0].resources.limits[cpu]",
        "spec.containers[0].resources.limits[b]",
    } <= set(answer.fields)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        pytest.param({"spec": {"containers": {}}}, "spec.containers", id="an object for a list"),
        pytest.param({"spec": {"containers": [{"name": 5}]}}, "spec.containers[0].name", id="a number for a name"),
        pytest.param({"spec": []}, "spec", id="a list for a spec"),
        pytest.param({"metadata": {"name": "a", "labels": {"n": 1}}}, "metadata.labels[n]", id="a number for a label"),
        pytest.param(
            {"metadata": {"name": "a", "annotations": ["x"]}}, "metadata.annotations", id="a list of annotations"
        ),
        pytest.param({"metadata": []}, "metadata", id="metadata is a list"),
        pytest.param({"metadata": {"name": "a", "ownerReferences": [1]}}, "metadata.ownerReferences[0]", id="owner 1"),
    ],
)
async def test_a_value_of_the_wrong_type_cannot_be_decoded(call: Caller, changes: Json, told: str) -> None:
    answer = await call("POST", PODS, {**pod(), **changes})
    assert (answer.status, answer.body["reason"]) == (400, "BadRequest")
    assert told in answer.message


@pytest.mark.parametrize(
    ("body", "told"),
    [
        pytest.param(b"", "JSON", id="nothing"),
        pytest.param(b"{", "JSON", id="half an object"),
        pytest.param(b"[]", "must be an object", id="a list"),
        pytest.param(
            b'{"kind": "Node", "apiVersion": "v1"}', "does not match the expected kind (Pod)", id="another kind"
        ),
        pytest.param(b'{"kind": "Pod", "apiVersion": "v2"}', "(v2) does not match", id="another version"),
        pytest.param(b"[" * 100_000, "JSON", id="a hundred thousand brackets"),
        pytest.param(b'{"metadata": {"name": "\xff"}}', "JSON", id="not unicode"),
    ],
)
async def test_a_body_that_is_no_object_of_the_kind_is_refused(call: Caller, body: bytes, told: str) -> None:
    answer = await call.transport.send(HttpRequest("POST", PODS, body=body))
    assert answer.status == 400
    assert told in answer.body.decode()


class TestAnUnknownField:
    async def test_is_dropped_with_a_warning_by_default(self, call: Caller) -> None:
        answer = await call("POST", PODS, pod(containres=[]))
        assert answer.status == 201
        assert "containres" not in answer.body["spec"]
        assert answer.headers["warning"] == r'299 - "unknown field \"spec.containres\""'

    async def test_is_refused_with_strict_validation(self, call: Caller) -> None:
        wrong = pod(containers=[{"name": "a", "image": "b", "imagee": "c"}])
        answer = await call("POST", PODS, wrong, fieldValidation="Strict")
        assert answer.status == 400
        assert 'strict decoding error: unknown field "spec.containers[0].imagee"' in answer.message

    async def test_is_dropped_without_a_warning_if_the_client_asks_for_that(self, call: Caller) -> None:
        answer = await call("POST", PODS, pod(containres=[]), fieldValidation="Ignore")
        assert answer.status == 201
        assert "warning" not in answer.headers


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        pytest.param(
            "/api/v1/namespaces/default/secrets",
            {"metadata": {"name": "s"}, "data": {"password": "not base64!"}},
            "data[password]",
            id="a secret that is not base64",
        ),
        pytest.param(
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            {"metadata": {"name": "l"}, "spec": {"renewTime": "2026-01-01T00:00:00Z"}},
            "spec.renewTime",
            id="a lease time without microseconds",
        ),
        pytest.param(
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}},
            "spec.leaseDurationSeconds",
            id="a lease of no duration",
        ),
        pytest.param(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": "p"}, "value": 2_000_000_000},
            "value",
            id="a priority for the system only",
        ),
        pytest.param(
            "/api/v1/namespaces/default/events",
            {"metadata": {"name": "e"}, "involvedObject": {"namespace": "lab"}},
            "involvedObject.namespace",
            id="an event away from its object",
        ),
        pytest.param("/api/v1/namespaces", {"metadata": {"name": "a.b"}}, "metadata.name", id="a namespace with a dot"),
        pytest.param(
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            {"metadata": {"name": "w"}, "webhooks": [{"name": "w", "clientConfig": {}}]},
            "webhooks[0].clientConfig",
            id="a webhook without an address",
        ),
    ],
)
async def test_other_kinds_are_checked_too(call: Caller, path: str, body: Json, told: str) -> None:
    answer = await call("POST", path, body)
    assert answer.status in (400, 422)
    assert told in answer.message


@pytest.mark.parametrize(
    ("query", "told"),
    [
        pytest.param({"labelSelector": "a in b"}, "selector", id="label selector"),
        pytest.param(
            {"fieldSelector": "spec.colour=red"}, "field label not supported: spec.colour", id="field selector"
        ),
        pytest.param({"limit": "ten"}, 'limit: Invalid value: "ten"', id="limit"),
        pytest.param({"continue": "nonsense"}, "continue key is not valid", id="continue token"),
        pytest.param({"resourceVersion": "x"}, 'resourceVersion: Invalid value: "x"', id="version"),
    ],
)
async def test_a_query_that_cannot_be_understood_is_refused(call: Caller, query: dict[str, str], told: str) -> None:
    answer = await call("GET", PODS, **query)
    assert answer.status == 400
    assert told in answer.message


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/default/desks",
        "/apis/none/v1/desks",
        "/api/v2/pods",
        "/nowhere",
        "/api/v1/pods/a/b/c/d",
        PODS + "/a/b",
    ],
)
async def test_what_is_not_served_is_not_found(call: Caller, path: str) -> None:
    answer = await call("GET", path)
    assert (answer.status, answer.body["reason"]) == (404, "NotFound")


async def test_a_subresource_takes_only_its_own_verbs(call: Caller) -> None:
    await call.made(PODS, pod())
    answer = await call("DELETE", f"{PODS}/train/status")
    assert answer.status == 405
    assert (await call("GET", f"{PODS}/train")).status == 200


async def test_a_running_pods_spec_cannot_change_but_for_its_image(call: Caller) -> None:
    made = await call.made(PODS, pod())
    made["spec"]["containers"][0]["image"] = "busybox:2"
    answer = await call("PUT", f"{PODS}/train", made)
    assert answer.status == 200
    answer.body["spec"]["containers"][0]["args"] = ["x"]
    refused = await call("PUT", f"{PODS}/train", answer.body)
    assert refused.status == 422
    assert "changed: spec.containers" in refused.message


async def test_quantities_are_kept_as_text(call: Caller) -> None:
    made = await call.made(
        PODS, pod(containers=resources(limits={"cpu": 2, "memory": 1e9, "aliyun.com/gpu-mem": 8138}))
    )
    assert made["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "2", "memory": "1000000000", "aliyun.com/gpu-mem": "8138"},
        "requests": {"cpu": "2", "memory": "1000000000", "aliyun.com/gpu-mem": "8138"},
    }


async def test_a_missing_namespace_is_reported(call: Caller) -> None:
    answer = await call("POST", "/api/v1/namespaces/nowhere/configmaps", config_map())
    assert (answer.status, answer.message) == (404, 'namespaces "nowhere" not found')


async def test_a_path_that_is_not_served_is_reported_with_details(call: Caller) -> None:
    """kubectl looks into them, and crashes where there are none."""
    answer = await call("GET", f"{PODS}/train/horoscope")
    assert (answer.status, answer.body["reason"]) == (404, "NotFound")
    assert answer.body["details"]["causes"]
