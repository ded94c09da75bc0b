"""Lists: which objects, in which order, page by page; and what a view keeps."""

from typing import Any

import pytest

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Expired, Invalid, MergePatch, Selection
from carrel.kubernetes.objects.resources import CONFIG_MAPS, LEASES, PODS, Resource
from tests.contracts.backends import Backend, unique
from tests.contracts.objects import config_map, desk, lease, pod


def names(page: Any) -> list[str]:
    return [item.metadata.name for item in page.items]


async def test_a_list_has_what_was_created_in_the_order_of_names(cluster: Client, namespace: str) -> None:
    for name in ("b", "c", "a"):
        await cluster.create(LEASES, lease(name), namespace)
    assert names(await cluster.list(LEASES, Selection(namespace))) == ["a", "b", "c"]


async def test_a_list_of_nothing_has_a_version(cluster: Client, namespace: str) -> None:
    page = await cluster.list(LEASES, Selection(namespace))
    assert list(page.items) == []
    assert page.resource_version.isdecimal()
    assert page.continue_token == ""


async def test_a_lists_version_is_no_older_than_its_objects(cluster: Client, namespace: str) -> None:
    made = await cluster.create(LEASES, lease("a"), namespace)
    page = await cluster.list(LEASES, Selection(namespace))
    assert int(page.resource_version) >= int(made["metadata"]["resourceVersion"])


async def test_a_list_over_all_namespaces_has_ours_too(cluster: Client, namespace: str) -> None:
    name = unique("everywhere")
    await cluster.create(LEASES, lease(name), namespace)
    page = await cluster.list(LEASES, Selection(fields=f"metadata.name={name}"))
    assert [(item.metadata.namespace, item.metadata.name) for item in page.items] == [(namespace, name)]


async def test_a_listed_pod_has_what_carrel_reads(cluster: Client, namespace: str) -> None:
    limits = {"aliyun.com/gpu-mem": "8138"}
    spec = {"containers": [{"name": "main", "image": "busybox", "resources": {"limits": limits}}]}
    owner = await cluster.create(CONFIG_MAPS, config_map("owner"), namespace)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    body = pod("one", spec=spec, labels={"a": "b"}, annotations={"c": "d"}, ownerReferences=[reference])
    made = await cluster.create(PODS, body, namespace)
    [seen] = (await cluster.list(PODS, Selection(namespace))).items
    assert (seen.metadata.name, seen.metadata.namespace) == ("one", namespace)
    assert seen.metadata.uid == made["metadata"]["uid"]
    assert seen.metadata.resource_version == made["metadata"]["resourceVersion"]
    assert seen.metadata.creation_timestamp == made["metadata"]["creationTimestamp"]
    assert seen.metadata.deletion_timestamp == ""
    assert (dict(seen.metadata.labels), dict(seen.metadata.annotations)) == ({"a": "b"}, {"c": "d"})
    assert [(o.kind, o.name, o.controller) for o in seen.metadata.owner_references] == [("ConfigMap", "owner", False)]
    assert (seen.spec.node_name, seen.spec.scheduler_name, seen.status.phase) == ("", "nobody", "Pending")
    [container] = seen.spec.containers
    assert (container.name, dict(container.resources.limits)) == ("main", limits)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param("tier=booked", ["a"], id="equal"),
        pytest.param("tier==booked", ["a"], id="equal, written twice"),
        pytest.param("tier!=booked", ["b", "c", "d"], id="unequal includes the absent"),
        pytest.param("tier", ["a", "b", "c"], id="present"),
        pytest.param("!tier", ["d"], id="absent"),
        pytest.param("tier in (booked, free)", ["a", "c"], id="one of"),
        pytest.param("tier notin (booked, free)", ["b", "d"], id="none of includes the absent"),
        pytest.param("tier=free,room=2", ["c"], id="both"),
        pytest.param("carrel.dev/managed=true", ["d"], id="a key with a prefix"),
        pytest.param("tier=nothing", [], id="no match"),
    ],
)
async def test_a_label_selector_chooses(cluster: Client, namespace: str, selector: str, expected: list[str]) -> None:
    labels = {
        "a": {"tier": "booked", "room": "1"},
        "b": {"tier": "opportunistic", "room": "2"},
        "c": {"tier": "free", "room": "2"},
        "d": {"carrel.dev/managed": "true"},
    }
    for name, given in labels.items():
        await cluster.create(CONFIG_MAPS, config_map(name, labels=given), namespace)
    assert names(await cluster.list(CONFIG_MAPS, Selection(namespace, labels=selector))) == expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param("metadata.name=a", ["a"], id="by name"),
        pytest.param("metadata.name!=a", ["b", "c"], id="by another name"),
        pytest.param("spec.nodeName=", ["a", "b"], id="not bound"),
        pytest.param("spec.nodeName=n1", ["c"], id="bound to a node"),
        pytest.param("status.phase=Running", ["b"], id="by phase"),
        pytest.param("status.phase!=Running,spec.nodeName=", ["a"], id="two at once"),
        pytest.param("spec.schedulerName=nobody", ["a", "b", "c"], id="by scheduler"),
    ],
)
async def test_a_field_selector_chooses_pods(
    cluster: Client, namespace: str, selector: str, expected: list[str]
) -> None:
    for name in ("a", "b"):
        await cluster.create(PODS, pod(name), namespace)
    await cluster.create(PODS, pod("c", spec={"nodeName": "n1"}), namespace)
    await cluster.patch(PODS, "b", MergePatch({"status": {"phase": "Running"}}), namespace, subresource="status")
    assert names(await cluster.list(PODS, Selection(namespace, fields=selector))) == expected


@pytest.mark.parametrize(
    "selection",
    [
        pytest.param(Selection(labels="tier in booked"), id="a list without brackets"),
        pytest.param(Selection(labels="tier=(booked)"), id="a value with brackets"),
        pytest.param(Selection(fields="spec.colour=red"), id="a field that nobody indexes"),
    ],
)
async def test_a_wrong_selector_is_refused(cluster: Client, selection: Selection) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.list(PODS, selection)
    assert (refused.value.status, refused.value.reason) == (400, "BadRequest")


async def test_custom_resources_are_selected_by_name_and_label(
    cluster: Client, namespace: str, desks: Resource[Any]
) -> None:
    await cluster.create(desks, desk(desks, "d1", labels={"window": "yes"}), namespace)
    await cluster.create(desks, desk(desks, "d2"), namespace)
    assert names(await cluster.list(desks, Selection(namespace, fields="metadata.name=d2"))) == ["d2"]
    assert names(await cluster.list(desks, Selection(namespace, labels="window"))) == ["d1"]


class TestPaging:
    async def test_pages_add_up_to_the_list(self, cluster: Client, namespace: str) -> None:
        for index in range(5):
            await cluster.create(CONFIG_MAPS, config_map(f"item-{index}"), namespace)
        selection = Selection(namespace, fields="metadata.name!=kube-root-ca.crt")
        pages, token = [], ""
        while True:
            page = await cluster.list(CONFIG_MAPS, selection, limit=2, continue_token=token)
            pages.append(names(page))
            token = page.continue_token
            if not token:
                break
        assert [name for page in pages for name in page] == [f"item-{index}" for index in range(5)]
        assert max(map(len, pages)) <= 2
        assert len(pages) >= 3

    async def test_later_pages_show_the_state_of_the_first_page(self, cluster: Client, namespace: str) -> None:
        for name in ("a", "b", "d"):
            await cluster.create(LEASES, lease(name), namespace)
        first = await cluster.list(LEASES, Selection(namespace), limit=2)
        await cluster.create(LEASES, lease("c"), namespace)
        await cluster.delete(LEASES, "d", namespace)
        second = await cluster.list(LEASES, Selection(namespace), limit=2, continue_token=first.continue_token)
        assert (names(first), names(second)) == (["a", "b"], ["d"])
        assert first.resource_version == second.resource_version
        assert second.continue_token == ""

    async def test_a_page_as_large_as_the_list_is_the_last(self, cluster: Client, namespace: str) -> None:
        for name in ("a", "b"):
            await cluster.create(LEASES, lease(name), namespace)
        assert (await cluster.list(LEASES, Selection(namespace), limit=2)).continue_token == ""

    async def test_after_a_compaction_a_token_shows_the_state_of_the_first_page_or_has_expired(
        self, backend: Backend, cluster: Client, namespace: str
    ) -> None:
        """Since 1.34 a server may have that world in its watch cache; nobody may rely on it."""
        for name in ("a", "b", "c"):
            await cluster.create(LEASES, lease(name), namespace)
        first = await cluster.list(LEASES, Selection(namespace), limit=2)
        await cluster.create(LEASES, lease("d"), namespace)
        await backend.compact()
        try:
            second = await cluster.list(LEASES, Selection(namespace), limit=2, continue_token=first.continue_token)
        except Expired as expired:
            assert (expired.status, expired.reason) == (410, "Expired")
        else:
            assert (names(second), second.resource_version) == (["c"], first.resource_version)

    async def test_an_unknown_continue_token_is_refused(self, cluster: Client, namespace: str) -> None:
        with pytest.raises(Invalid) as refused:
            await cluster.list(LEASES, Selection(namespace), limit=2, continue_token="made up")
        assert refused.value.status == 400
