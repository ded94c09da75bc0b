"""A field that the server does not know: refused where the client is strict, dropped with a warning where it is not."""

from typing import Any

import pytest

from carrel.kubernetes.cluster import Invalid, Json, JsonPatch, MergePatch, NotFound, Patch
from carrel.kubernetes.objects.resources import PODS, Resource
from tests.contracts.backends import Backend
from tests.contracts.objects import desk, pod

UNKNOWN = {"seats": 2, "wheels": 4, "lamp": {"bulbs": [{"watts": 1}]}}


async def test_an_unknown_field_of_a_custom_kind_is_refused_by_name(
    backend: Backend, namespace: str, desks: Resource[Any]
) -> None:
    with pytest.raises(Invalid) as refused:
        await backend.client.create(desks, desk(desks, "d1", UNKNOWN), namespace)
    assert refused.value.status == 400
    for field in ("spec.wheels", "spec.lamp"):
        assert 'strict decoding error: unknown field "spec.' in refused.value.message
        assert f'unknown field "{field}"' in refused.value.message
    with pytest.raises(NotFound):
        await backend.client.get(desks, "d1", namespace)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What API servers warned of, as Carrel logs it."""
    return sorted(str(each.args[-1]) for each in caplog.records if isinstance(each.args, tuple) and "warns" in each.msg)


async def test_an_unknown_field_is_dropped_and_the_warning_names_it(
    backend: Backend, namespace: str, desks: Resource[Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = await backend.lenient.create(desks, desk(desks, "d1", {"seats": 2}), namespace)
    assert warnings(caplog) == []

    changed = await backend.lenient.update(desks, {**made, "spec": UNKNOWN})

    assert changed["spec"] == {"seats": 2, "floor": "ground"}
    assert warnings(caplog) == ['unknown field "spec.lamp"', 'unknown field "spec.wheels"']


@pytest.mark.parametrize("subresource", ["", "status"])
@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(lambda part: MergePatch({part: {"wheels": 4}}), id="merge patch"),
        pytest.param(
            lambda part: JsonPatch([{"op": "add", "path": f"/{part}", "value": {"seats": 2, "wheels": 4}}]),
            id="json patch",
        ),
    ],
)
async def test_a_patch_is_validated_too(
    backend: Backend,
    namespace: str,
    desks: Resource[Any],
    patch: Any,
    subresource: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await backend.client.create(desks, desk(desks, "d1", {"seats": 2}), namespace)
    part = subresource or "spec"
    change: Patch = patch(part)
    with pytest.raises(Invalid) as refused:
        await backend.client.patch(desks, "d1", change, namespace, subresource=subresource)
    assert f'unknown field "{part}.wheels"' in refused.value.message

    changed = await backend.lenient.patch(desks, "d1", change, namespace, subresource=subresource)

    assert "wheels" not in changed.get(part, {})
    assert f'unknown field "{part}.wheels"' in warnings(caplog)


async def test_built_in_kinds_are_validated_the_same_way(
    backend: Backend, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: Json = pod("p1")
    wrong["spec"]["containers"][0]["imagee"] = "work"
    with pytest.raises(Invalid) as refused:
        await backend.client.create(PODS, wrong, namespace)
    assert 'strict decoding error: unknown field "spec.containers[0].imagee"' in refused.value.message

    await backend.lenient.create(PODS, wrong, namespace)
    note = MergePatch({"metadata": {"anotations": {"a": "b"}}})
    await backend.lenient.patch(PODS, "p1", note, namespace)

    assert 'unknown field "metadata.anotations"' in warnings(caplog)
