"""The account of a JupyterHub: whether it is known, and may do what `docs/jupyterhub.md` asks for."""

from collections.abc import Sequence

from carrel.cli.checks.accounts import Right, missing_rights
from carrel.cli.checks.component_pods import ask_metrics, component_pods, newest
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.kubernetes.cluster import ClusterError, NotFound
from carrel.kubernetes.objects.resources import SERVICE_ACCOUNTS

SPAWNERS = "CARREL_SPAWNERS"
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
        "pods came from a hub that is not in spawners: no booking covers them",
        "spawners={system:serviceaccount:jhub:hub}",
    ),
    (
        "carrel_pods_of_unmatched_hub_users_total",
        "pods are of users of the hub whose address is not known: no booking covers them",
        "usernameDomain=lab.example",
    ),
)
"""Metric of the webhook → what it means, and the value that helps."""


async def hub(of: Installation) -> Sequence[Finding]:
    pods = await component_pods(of, "webhook")
    webhook = newest(pods, "webhook")
    named = [each.strip() for each in (webhook.given(SPAWNERS) if webhook else "").split(",") if each.strip()]
    found = [finding for account in named for finding in await _account(of, account)]
    for pod in pods:
        try:
            measured = await ask_metrics(of, pod)
        except ClusterError:
            break  # said by `components`
        for name, meaning, value in TOLD:
            if count := measured.total(name):
                found.append(warn(f"{count:,.0f} {meaning}", of.with_values(value)))
    return found or [ok("no hub is named, and no pod of one has come")]


async def _account(of: Installation, account: str) -> Sequence[Finding]:
    hop = f"hub {account.removeprefix(PREFIX)}"
    namespace, _, name = account.removeprefix(PREFIX).partition(":")
    if not account.startswith(PREFIX) or not (namespace and name):
        return [
            fail(
                "it is not the name of a ServiceAccount",
                of.with_values("spawners={system:serviceaccount:jhub:hub}"),
                hop,
            )
        ]
    try:
        await of.client.get(SERVICE_ACCOUNTS, name, namespace)
    except NotFound:
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
