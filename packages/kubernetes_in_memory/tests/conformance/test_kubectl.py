"""The scenario with kubectl: the commands that people type, and what they read."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packages.kubernetes_in_memory.tests.conformance.manifests import HOLD, Json, definition, desk, pod
from testbed import clients

LIMIT_S = 300.0


class Kubectl:
    def __init__(self, kubeconfig: Path, home: Path) -> None:
        self._program = os.environ.get("CARREL_KUBECTL") or str(clients.kubectl())
        self._kubeconfig = kubeconfig
        self._env = {"HOME": str(home), "PATH": os.environ.get("PATH", "")}

    def command(self, *arguments: str) -> list[str]:
        return [self._program, "--kubeconfig", str(self._kubeconfig), *arguments]

    def run(self, *arguments: str, given: Json | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            input=json.dumps(given) if given else None,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=self._env,
            check=False,
        )

    def __call__(self, *arguments: str, given: Json | None = None) -> str:
        done = self.run(*arguments, given=given)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def refused(self, *arguments: str, given: Json | None = None) -> str:
        done = self.run(*arguments, given=given)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)} was expected to fail: {done.stdout}"
        return done.stderr.strip()

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))

    def watching(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self._env
        )


@pytest.fixture
def kubectl(kubeconfig: Path, tmp_path: Path) -> Kubectl:
    return Kubectl(kubeconfig, tmp_path)


@pytest.fixture
def lab(kubectl: Kubectl, unique: str) -> Callable[..., str]:
    """kubectl in a namespace of its own."""
    assert kubectl("create", "namespace", unique) == f"namespace/{unique} created"

    def run(*arguments: str, given: Json | None = None) -> str:
        return kubectl("-n", unique, *arguments, given=given)

    return run


def test_custom_resources(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    crd = f"customresourcedefinition.apiextensions.k8s.io/desks.{unique}.example"
    desks = f"desks.{unique}.example"
    assert kubectl("create", "-f", "-", given=definition(unique)) == f"{crd} created"
    kubectl("wait", "--for=condition=Established", crd, "--timeout=30s")
    assert lab("apply", "-f", "-", given=desk(unique)).endswith("/window created")
    assert lab("apply", "-f", "-", given=desk(unique)).endswith("/window unchanged")
    assert lab("apply", "-f", "-", given=desk(unique, seats=3)).endswith("/window configured")
    assert kubectl.json("-n", unique, "get", desks, "window")["spec"] == {"seats": 3, "floor": "ground"}
    assert lab("get", desks).splitlines()[1].split() == ["window", "3"]
    told = kubectl.refused("-n", unique, "apply", "-f", "-", given=desk(unique, "bad", seats=0, floor="roof"))
    assert "spec.seats" in told
    assert "spec.floor" in told
    kubectl("delete", "crd", desks)
    assert "the server doesn't have a resource type" in kubectl.refused("get", desks)


def test_pods_are_applied_selected_patched_and_shown(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    assert lab("apply", "-f", "-", given=pod(unique)) == "pod/train created"
    lab("apply", "-f", "-", given=pod(unique, "other"))
    assert (
        lab("get", "pods", "-l", "app=train", "--field-selector", "status.phase=Pending", "-o", "name") == "pod/train"
    )
    lab("patch", "pod", "train", "--type", "merge", "-p", '{"metadata":{"annotations":{"a":"merge"}}}')
    lab(
        "patch",
        "pod",
        "train",
        "--type",
        "strategic",
        "-p",
        '{"spec":{"containers":[{"name":"main","image":"busybox:2"}]}}',
    )
    lab("patch", "pod", "train", "--type", "json", "-p", '[{"op":"add","path":"/metadata/labels/b","value":"json"}]')
    lab("label", "pod", "train", "c=label")
    found = kubectl.json("-n", unique, "get", "pod", "train")
    assert found["metadata"]["annotations"]["a"] == "merge"
    assert found["metadata"]["labels"] == {"app": "train", "b": "json", "c": "label"}
    assert found["spec"]["containers"][0]["image"] == "busybox:2"
    assert found["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}
    header, *rows = lab("get", "pods").splitlines()
    assert header.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert [row.split()[:3] for row in rows] == [["other", "0/1", "Pending"], ["train", "0/1", "Pending"]]
    assert "Status:" in lab("describe", "pod", "train")


def test_server_side_apply_knows_who_owns_a_field(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    labelled = pod(unique, labels={"app": "train", "tier": "a"})
    assert lab(*apply, given=labelled) == "pod/train serverside-applied"
    other = pod(unique, labels={"app": "train", "tier": "b"})
    told = kubectl.refused("-n", unique, *apply, "--field-manager", "other", given=other)
    assert ".metadata.labels.tier" in told
    lab(*apply, "--field-manager", "other", "--force-conflicts", given=other)
    assert kubectl.json("-n", unique, "get", "pod", "train")["metadata"]["labels"]["tier"] == "b"


def test_a_stale_replace_is_a_conflict(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    lab("create", "configmap", "one", "--from-literal", "colour=red")
    stale = kubectl.json("-n", unique, "get", "configmap", "one")
    lab("patch", "configmap", "one", "--type", "merge", "-p", '{"data":{"colour":"blue"}}')
    told = kubectl.refused("-n", unique, "replace", "-f", "-", given=stale)
    assert "the object has been modified" in told


def test_a_finalizer_delays_a_deletion(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    lab("apply", "-f", "-", given=pod(unique, finalizers=[HOLD]))
    lab("delete", "pod", "train", "--wait=false")
    assert "deletionTimestamp" in kubectl.json("-n", unique, "get", "pod", "train")["metadata"]
    lab("patch", "pod", "train", "--type", "merge", "-p", '{"metadata":{"finalizers":null}}')
    assert 'pods "train" not found' in kubectl.refused("-n", unique, "get", "pod", "train")


def test_a_watch_shows_what_happens(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    with kubectl.watching("get", "pods", "-n", unique, "-w", "-o", "name") as watch:
        try:
            lab("apply", "-f", "-", given=pod(unique))
            assert watch.stdout is not None
            assert watch.stdout.readline().strip() == "pod/train"
        finally:
            watch.terminate()


def test_malformed_manifests_are_refused_with_the_field(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    misspelt = pod(unique)
    misspelt["spec"]["containers"][0]["imagee"] = "x"
    told = kubectl.refused("-n", unique, "apply", "-f", "-", given=misspelt)
    assert "spec.containers[0].imagee" in told or 'unknown field "imagee"' in told
    wrong = pod(unique)
    wrong["spec"]["containers"][0]["name"] = "Not A Name"
    assert "spec.containers[0].name" in kubectl.refused("-n", unique, "apply", "-f", "-", given=wrong)


def test_typed_commands(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    """They send protobuf, and nothing else."""
    lab("create", "secret", "generic", "key", "--from-literal", "password=tea")
    assert kubectl.json("-n", unique, "get", "secret", "key")["data"] == {"password": "dGVh"}
    lab("create", "serviceaccount", "ada")
    assert lab("create", "token", "ada")
    lab("create", "service", "clusterip", "web", "--tcp=80:8080")
    (port,) = kubectl.json("-n", unique, "get", "service", "web")["spec"]["ports"]
    assert (port["port"], port["targetPort"], port["protocol"]) == (80, 8080, "TCP")
    lab("create", "deployment", "web", "--image=nginx:1", "--port=80", "--replicas=0")
    deployment = kubectl.json("-n", unique, "get", "deployment", "web")["spec"]
    assert deployment["replicas"] == 0
    assert deployment["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] == 80
    lab("create", "job", "once", "--image=busybox", "--", "sleep", "1")
    job = kubectl.json("-n", unique, "get", "job", "once")["spec"]["template"]["spec"]
    assert (job["containers"][0]["command"], job["restartPolicy"]) == (["sleep", "1"], "Never")
    assert kubectl("auth", "can-i", "create", "pods") == "yes"


def test_a_disruption_budget_is_created(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    lab("create", "pdb", "web", "--selector=app=web", "--min-available=50%")
    assert kubectl.json("-n", unique, "get", "pdb", "web")["spec"] == {
        "minAvailable": "50%",
        "selector": {"matchLabels": {"app": "web"}},
    }


def test_a_pod_is_waited_for(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    lab("apply", "-f", "-", given=pod(unique))
    assert "timed out" in kubectl.refused("-n", unique, "wait", "--for=condition=Ready", "pod/train", "--timeout=1s")
    with kubectl.watching(
        "-n", unique, "wait", "--for=condition=Ready", "pod/train", f"--timeout={LIMIT_S:.0f}s"
    ) as wait:
        ready = '{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}'
        lab("patch", "pod", "train", "--subresource=status", "--type", "merge", "-p", ready)
        assert wait.wait(LIMIT_S) == 0
    lab("wait", "--for=jsonpath={.status.phase}=Running", "pod/train", f"--timeout={LIMIT_S:.0f}s")
    assert lab("delete", "pod", "train", "--grace-period=1", f"--timeout={LIMIT_S:.0f}s").startswith(
        'pod "train" deleted'
    )
    lab("wait", "--for=delete", "pod/train", f"--timeout={LIMIT_S:.0f}s")


def test_a_pod_is_debugged_and_resized(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    lab("apply", "-f", "-", given=pod(unique))
    lab("debug", "train", "--image=busybox", "--container=debugger", "--attach=false", "--profile=general")
    more = '{"spec":{"containers":[{"name":"main","resources":{"limits":{"cpu":"2"},"requests":{"cpu":"2"}}}]}}'
    lab("patch", "pod", "train", "--subresource=resize", "-p", more)
    spec = kubectl.json("-n", unique, "get", "pod", "train")["spec"]
    assert [one["name"] for one in spec["ephemeralContainers"]] == ["debugger"]
    assert spec["containers"][0]["resources"]["limits"] == {"cpu": "2"}


def test_what_happened_to_a_pod_is_described(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    lab("apply", "-f", "-", given=pod(unique))
    uid = kubectl.json("-n", unique, "get", "pod", "train")["metadata"]["uid"]
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": unique, "name": "train", "uid": uid}
    event = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "told", "namespace": unique}}
    said = {"reason": "FailedScheduling", "note": "no GPU has room", "type": "Warning", "action": "Scheduler"}
    by = {"reportingController": "gpu-scheduler", "reportingInstance": "gpu-scheduler-1"}
    lab(
        "create",
        "-f",
        "-",
        given={**event, **said, **by, "regarding": about, "eventTime": "2026-11-16T10:00:00.000000Z"},
    )
    for command in (("describe", "pod", "train"), ("events", "--for", "pod/train"), ("get", "events")):
        told = lab(*command)
        assert "FailedScheduling" in told, command
        assert "no GPU has room" in told, command


def test_discovery(kubectl: Kubectl) -> None:
    names = set(kubectl("api-resources", "-o", "name").splitlines())
    assert names >= {
        *("pods", "nodes", "events", "events.events.k8s.io", "leases.coordination.k8s.io", "jobs.batch"),
        *("persistentvolumes", "persistentvolumeclaims", "replicationcontrollers", "storageclasses.storage.k8s.io"),
        *("resourceclaims.resource.k8s.io", "resourceslices.resource.k8s.io", "deviceclasses.resource.k8s.io"),
        "resourceclaimtemplates.resource.k8s.io",
    }


def test_a_namespace_is_deleted_with_its_content(kubectl: Kubectl, lab: Callable[..., str], unique: str) -> None:
    lab("create", "configmap", "one")
    kubectl("delete", "namespace", unique, "--wait=false")
    ends_at = time.monotonic() + LIMIT_S
    while kubectl.run("get", "namespace", unique).returncode == 0:
        assert time.monotonic() < ends_at, "the namespace is still there"
        time.sleep(0.2)


def test_a_kind_that_is_not_served_is_named(kubectl: Kubectl) -> None:
    banana = {"apiVersion": "fruit.example/v1", "kind": "Banana", "metadata": {"name": "ripe"}}

    for verb in ("apply", "create"):
        told = kubectl.refused(verb, "--filename", "-", given=banana)
        assert 'no matches for kind "Banana" in version "fruit.example/v1"' in told
