"""The keys in the admission manifests are those of the dialects: a key that a dialect adds and they lack fails here.

What the expressions do with the keys is tested on a real API server (`tests/e2e`): nothing here evaluates CEL.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from carrel.dialects import carrel, gpuclaim, kai, kai_reservation, nvidia, protected_keys
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.registry import ALL
from carrel.manifests import policies, rbac, webhooks

Json = dict[str, Any]

LITERAL = re.compile(r"'([^']*)'")
PREFIX = re.compile(r"startsWith\('([^']*)'\)")

ASKING_ANNOTATIONS = set(ALL.by_annotation)
CARREL = "system:serviceaccount:carrel:"
POLICIES = ("carrel-protected-keys", "carrel-gpu-pods", "carrel-bookings")


def webhook() -> Json:
    (configuration,) = webhooks()
    (found,) = configuration["webhooks"]
    return dict(found)


def policy(name: str) -> Json:
    documents = [each for each in policies() if each["metadata"]["name"] == name]
    assert [each["kind"] for each in documents] == ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
    assert documents[1]["spec"] == {"policyName": name, "validationActions": ["Deny"]}
    return dict(documents[0]["spec"])


def named(expressions: Iterable[Mapping[str, str]], name: str) -> str:
    return next(each["expression"] for each in expressions if each["name"] == name)


def words_of(expression: str) -> set[str]:
    """All quoted words, those of `startsWith` with a star."""
    prefixes = PREFIX.findall(expression)
    return {*LITERAL.findall(PREFIX.sub("", expression)), *(f"{each}*" for each in prefixes)}


def under_our_prefixes(words: Iterable[str]) -> set[str]:
    return {word for word in words if word.startswith(carrel.PREFIXES)}


def test_the_webhook_is_asked_about_every_pod_that_it_would_change() -> None:
    asked = ASKING_ANNOTATIONS - under_our_prefixes(ASKING_ANNOTATIONS)
    ours = {f"{prefix}*" for prefix in carrel.PREFIXES}

    assert words_of(named(webhook()["matchConditions"], "concerns-gpus")) == {
        *asked,
        *protected_keys.annotations(),
        *ALL.written_labels,
        f"{kai.GPU_GROUP}/*",
        *ours,
        *carrel.PRIORITY_CLASSES,
        carrel.BOOKING,  # as a scheduling gate
        *ALL.resources,
        f"{nvidia.MIG_PREFIX}*",
    }
    assert webhook()["failurePolicy"] == "Fail"


def test_the_policy_protects_every_key_that_only_carrel_may_write() -> None:
    variables = policy("carrel-protected-keys")["variables"]

    assert words_of(named(variables, "forged")) == {
        *protected_keys.annotations(),
        *ALL.written_labels,
        f"{kai.GPU_GROUP}/*",
        *(f"{prefix}*" for prefix in carrel.PREFIXES),
        *carrel.ASKED,
    }
    assert words_of(named(variables, "settled")) == ALL.settled
    assert words_of(named(variables, "isReservation")) - {"system:serviceaccount:", ":"} == {
        *(spelling.namespace for spelling in kai_reservation.SPELLINGS),
        kai_reservation.RESERVED_GPU,
    }


def test_the_policy_for_gpu_pods_knows_every_way_of_asking() -> None:
    spec = policy("carrel-gpu-pods")

    assert words_of(named(spec["variables"], "asked")) - {"0"} == {*ASKING_ANNOTATIONS, *ALL.by_resource}
    assert words_of(named(spec["matchConditions"], "goes-elsewhere")) == {gpuclaim.SCHEDULER}


def test_nobody_but_carrel_writes_bookings_and_the_refusal_says_where_to_change_one() -> None:
    spec = policy("carrel-bookings")

    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["scope"]) == ([BOOKINGS.group], "Cluster")
    assert rule["resources"] == [BOOKINGS.plural, f"{BOOKINGS.plural}/status"]
    assert rule["operations"] == ["CREATE", "UPDATE", "DELETE"]
    (validation,) = spec["validations"]
    assert validation["expression"] == "false"
    for message in (validation["message"], validation["messageExpression"]):
        assert "the booking page" in message and "carrel cancel" in message


def test_only_carrels_accounts_and_admins_may_read_bookings() -> None:
    """No role of ours is added to those that every user of a namespace may have."""
    roles = [each for each in rbac() if any("bookings" in rule["resources"] for rule in each.get("rules", ()))]
    names = {each["metadata"]["name"] for each in roles}
    assert names == {"carrel-extender", "carrel-controller", "carrel-webhook", "carrel-booking"}
    assert not any("labels" in each["metadata"] for each in rbac())


@pytest.mark.parametrize(
    ("conditions", "accounts"),
    [
        pytest.param(webhook()["matchConditions"], {"controller"}, id="the webhook: who makes pods"),
        pytest.param(
            policy("carrel-protected-keys")["matchConditions"],
            {"agent", "controller", "extender"},
            id="protected keys: who writes on pods",
        ),
        pytest.param(policy("carrel-gpu-pods")["matchConditions"], {"controller"}, id="GPU pods: who makes pods"),
        pytest.param(
            policy("carrel-bookings")["matchConditions"], {"booking", "controller"}, id="bookings: who mirrors them"
        ),
    ],
)
def test_only_named_accounts_of_carrel_are_exempt(conditions: list[Mapping[str, str]], accounts: set[str]) -> None:
    exempt = words_of(named(conditions, "not-by-carrel"))
    made = {each["metadata"]["name"] for each in rbac() if each["kind"] == "ServiceAccount"}

    assert exempt == {f"{CARREL}carrel-{account}" for account in accounts}
    assert {f"carrel-{account}" for account in accounts} <= made


def test_no_user_is_trusted_by_default() -> None:
    for name in POLICIES:
        assert named(policy(name)["matchConditions"], "not-by-trusted") == "!(request.userInfo.username in [])"


def test_the_manifests_for_the_embedded_api_differ_only_in_what_it_cannot_do() -> None:
    (given,) = webhooks(for_embedded_api=True)
    (real,) = webhooks()

    del real["webhooks"][0]["matchConditions"]
    real["webhooks"][0]["failurePolicy"] = "Ignore"
    assert given == real
