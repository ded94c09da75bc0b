"""What each account may do, asked by SubjectAccessReviews: Carrel's own every right of `manifests/rbac.yaml`, and
that of a JupyterHub what `docs/jupyterhub.md` asks for."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carrel import manifests
from carrel.cli.checks.components import ask_metrics, component_pods
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.configuration.schema import ANY_ACCOUNT
from carrel.kubernetes.cluster import ClusterError, Selection
from carrel.kubernetes.objects.resources import PODS, SERVICE_ACCOUNTS, SUBJECT_ACCESS_REVIEWS

AT_ONCE = 8
"""Reviews: there are some hundred and fifty, and the API server has others to serve."""
NAMED = 3
"""Missing rights that are named; if the role is gone, all are missing."""
OWN_NAMESPACE = "carrel"
"""In the manifests; the chart puts the namespace of the release in its place."""


@dataclass(frozen=True, slots=True)
class Right:
    verb: str
    group: str
    resource: str
    """With its subresource: `pods/binding`."""
    namespace: str = ""
    """Empty: in all."""
    name: str = ""
    """Empty: whatever its name is."""

    def __str__(self) -> str:
        what = f"{self.resource}.{self.group}" if self.group else self.resource
        return (
            f"{self.verb} {what}{f' {self.name}' if self.name else ''}{f' in {self.namespace}' * bool(self.namespace)}"
        )


SCHEDULER_RIGHTS = (
    Right("create", "", "pods/binding"),
    Right("list", "", "nodes"),
    Right("watch", "storage.k8s.io", "csinodes"),
    Right("watch", "", "persistentvolumeclaims"),
)
"""Of `system:kube-scheduler` and `system:volume-scheduler`, as samples: kube-scheduler uses the extender's account."""


async def accounts(of: Installation) -> Sequence[Finding]:
    found = []
    claims = of.configuration.resource_claims
    documents = [*manifests.rbac(), *(manifests.dra(driver=claims.driver.value) if claims.enabled else ())]
    for account, rights in sorted(rights_by_account(documents, of.namespace).items()):
        missing = await missing_rights(of, account, rights)
        hop = f"account {account.rpartition(':')[2]}"
        found.append(fail(_words(missing), of.install, hop) if missing else ok(f"has all {len(rights)} rights", hop))
    return found


def rights_by_account(documents: Iterable[Mapping[str, Any]], namespace: str) -> dict[str, list[Right]]:
    """User name of each ServiceAccount → what the roles that are bound to it allow."""
    rules, found = {}, dict[str, list[Right]]()
    bindings = []
    for each in documents:
        where = _own(each["metadata"].get("namespace", ""), namespace)
        if each["kind"] in ("Role", "ClusterRole"):
            rules[each["kind"], where, each["metadata"]["name"]] = each["rules"]
        elif each["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            bindings.append((where, each["roleRef"], each["subjects"]))
    for_all = list[Right]()
    for where, role, subjects in bindings:
        rights = list(_rights(rules[role["kind"], where if role["kind"] == "Role" else "", role["name"]], where))
        for subject in subjects:
            if subject["kind"] == "Group":  # all ServiceAccounts
                for_all += rights
                continue
            account = f"system:serviceaccount:{_own(subject['namespace'], namespace)}:{subject['name']}"
            found.setdefault(account, []).extend(rights)
    extender = f"system:serviceaccount:{namespace}:carrel-extender"
    found.setdefault(extender, []).extend(SCHEDULER_RIGHTS)
    return {account: [*rights, *for_all] for account, rights in found.items()}


def _own(named: str, namespace: str) -> str:
    return namespace if named == OWN_NAMESPACE else named


def _rights(rules: Iterable[Mapping[str, Any]], namespace: str) -> Iterator[Right]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", ("",)):
                        yield Right(verb, group, resource, namespace, name)


async def missing_rights(of: Installation, account: str, rights: Sequence[Right]) -> list[Right]:
    """Which of them the API server does not grant. Raises `ClusterError`: to ask is a right itself."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def is_granted(right: Right) -> bool:
        async with turns:
            return await _is_granted(of, account, right)

    async with asyncio.TaskGroup() as tasks:
        asked = [(right, tasks.create_task(is_granted(right))) for right in rights]
    return [right for right, granted in asked if not granted.result()]


async def _is_granted(of: Installation, account: str, right: Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    asked = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource}
    asked |= {"namespace": right.namespace, "name": right.name}
    namespace = account.split(":")[2]
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    review = {
        "apiVersion": SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": SUBJECT_ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {"user": account, "groups": groups, "resourceAttributes": asked},
    }
    answer = await of.client.create(SUBJECT_ACCESS_REVIEWS, review)
    return bool(answer.get("status", {}).get("allowed"))


def _words(missing: Sequence[Right]) -> str:
    more = f", and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    return f"it may not {'; '.join(map(str, missing[:NAMED]))}{more}"


PREFIX = "system:serviceaccount:"
SPAWNER_RIGHTS = tuple(
    (verb, resource)
    for resource in ("pods", "persistentvolumeclaims", "secrets", "services")
    for verb in ("get", "watch", "list", "create", "delete")
) + tuple((verb, "events") for verb in ("get", "watch", "list"))
"""Of every hub with KubeSpawner."""
CARREL_RIGHTS = tuple(("patch", resource) for resource in ("pods", "secrets", "services"))
"""With Carrel's spawner: to take back a successor, and to give it what belonged to the first pod."""
TOLD = (
    (
        "carrel_pods_of_unlisted_spawners_total",
        "pods came from a hub that is not in hubs.accounts: no booking covers them",
        "config.hubs.accounts={system:serviceaccount:jhub:hub}",
    ),
    (
        "carrel_pods_of_unmatched_hub_users_total",
        "pods are of users of the hub whose address is not known: no booking covers them",
        "config.hubs.usernameDomain=lab.example",
    ),
)
"""Metric of the webhook → what it means, and the value that helps."""


async def hub(of: Installation) -> Sequence[Finding]:
    pods, hubs = await component_pods(of, "webhook"), of.configuration.hubs
    found = [finding for account in sorted(hubs.named) for finding in await _account(of, account)]
    if ANY_ACCOUNT in hubs.accounts:
        text = "hubs.accounts has any: whoever creates a pod says whose it is, and uses that person's booking"
        found.append(warn(text, of.with_values("config.hubs.accounts={system:serviceaccount:jhub:hub}")))
    else:
        found += await _unnamed_hubs(of)
    for pod in pods:
        try:
            measured = await ask_metrics(of, pod)
        except ClusterError:
            break  # said by `components`
        for name, meaning, value in TOLD:
            if count := measured.total(name):
                found.append(warn(f"{count:,.0f} {meaning}", of.with_values(value)))
    return found or [ok("no hub is named, none runs, and no pod of one has come")]


async def _unnamed_hubs(of: Installation) -> Sequence[Finding]:
    """The hubs that run, by the labels of Zero to JupyterHub. They are shown to an admin, and believed by nobody."""
    found: dict[str, str] = {}
    for pod in (await of.client.list(PODS, Selection(labels="component=hub"))).items:
        labels = pod.metadata.labels
        if "jupyterhub" in (labels.get("app"), labels.get("app.kubernetes.io/name")):
            account = f"{PREFIX}{pod.metadata.namespace}:{pod.spec.service_account_name or 'default'}"
            found[account] = f"{pod.metadata.namespace}/{pod.metadata.name}"
    named = of.configuration.hubs.named
    missing = {account: pod for account, pod in sorted(found.items()) if account not in named}
    value = f"config.hubs.accounts={{{','.join(sorted({*named, *missing}))}}}"
    return [
        warn(
            f"a hub runs as {pod}, and {account} is not in hubs.accounts: no booking covers its notebooks",
            of.with_values(value),
        )
        for account, pod in missing.items()
    ]


async def _account(of: Installation, account: str) -> Sequence[Finding]:
    hop = f"hub {account.removeprefix(PREFIX)}"
    namespace, _, name = account.removeprefix(PREFIX).partition(":")
    if await of.find(SERVICE_ACCOUNTS, name, namespace) is None:
        text = f"the namespace {namespace} has no ServiceAccount {name}: notebooks of another hub belong to nobody"
        return [fail(text, f"kubectl --namespace {namespace} get serviceaccounts", hop)]
    spawner, carrel = (
        [Right(verb, "", resource, namespace) for verb, resource in rights]
        for rights in (SPAWNER_RIGHTS, CARREL_RIGHTS)
    )
    apply = "apply the Roles in docs/jupyterhub.md"
    if missing := await missing_rights(of, account, spawner):
        return [fail(f"it may not {'; '.join(map(str, missing[:3]))}: it cannot start notebooks", apply, hop)]
    if missing := await missing_rights(of, account, carrel):
        text = f"it may not {'; '.join(map(str, missing))}: a notebook that is stopped may come back on CPU"
        return [warn(text, apply, hop)]
    return [ok("it may do what Carrel's spawner needs", hop)]
