"""The keys in the admission manifests are those of the dialects: a key that a dialect adds and they lack fails here.

What the expressions do with the keys is tested on a real API server (`tests/e2e`): nothing here evaluates CEL.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from carrel.dialects import carrel, kai, kai_reservation, mig, nvidia, protected_keys, visible_devices
from carrel.dialects.booking_objects import BOOKINGS
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.dialects.options import LONGEST_GRACE_S, SCHEDULER
from carrel.dialects.protected_keys import Writer
from carrel.dialects.registry import ALL
from carrel.kubernetes.objects.pods import CLASS_RESOURCE
from carrel.kubernetes.objects.resources import NODES, PODS
from carrel.manifests import policies, rbac, webhooks
from carrel.resource_claims import dra
from tests.kit.key_writers import WRITERS, WRITTEN_BY_PEERS, written_by

Json = dict[str, Any]

LITERAL = re.compile(r"'([^']*)'")
PREFIX = re.compile(r"startsWith\('([^']*)'\)")

ASKING_ANNOTATIONS = set(ALL.by_annotation)
CARREL = "system:serviceaccount:carrel:"
TRUSTING = ("carrel-protected-keys", "carrel-gpu-pods", "carrel-bookings")
OUR_KEY = re.compile(r'"((?:[a-z]+\.)?carrel\.dev/[a-z-]+)"')


def webhook(name: str = "gpu-pods.carrel.dev") -> Json:
    (configuration,) = webhooks(dra=True)
    return next(dict(each) for each in configuration["webhooks"] if each["name"] == name)


def policy(name: str) -> Json:
    documents = [each for each in policies() if each["metadata"]["name"] == name]
    assert [each["kind"] for each in documents] == ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
    binding = {key: value for key, value in documents[1]["spec"].items() if key != "paramRef"}
    assert binding == {"policyName": name, "validationActions": ["Deny"]}
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
        carrel.PRIORITY_CLASS,
        carrel.BOOKING,  # as a scheduling gate
        *ALL.resources,
        f"{CLASS_RESOURCE}{dra.DRIVER}",
        f"{mig.PREFIX}*",
    }
    assert webhook()["failurePolicy"] == "Fail"


def test_the_webhook_is_asked_about_other_pods_that_may_see_a_gpu_and_not_waited_for() -> None:
    entry = webhook("visible-gpus.carrel.dev")
    conditions = entry["matchConditions"]

    assert words_of(named(conditions, "may-see-gpus")) == {
        "",
        *kai.DIALECT.scheduler_names,
        nvidia.VISIBLE_DEVICES,
    }
    assert words_of(named(conditions, "not-a-gpu-pod")) == {carrel.TIER}
    assert (entry["failurePolicy"], entry["timeoutSeconds"]) == ("Ignore", 1)
    assert entry["rules"] == webhook()["rules"]
    by_label, by_name = entry["namespaceSelector"]["matchExpressions"]
    assert by_label == {"key": carrel.SEES_GPUS, "operator": "NotIn", "values": ["true"]}
    assert by_name["operator"] == "NotIn" and set(by_name["values"]) == {"carrel", *visible_devices.TOOL_NAMESPACES}


@pytest.mark.parametrize(
    ("dra", "with_claims"), [(True, ["claim-pods.carrel.dev", "claims.carrel.dev"]), (False, [])], ids=["dra", "no dra"]
)
def test_only_where_claims_are_counted_the_webhook_is_asked_about_them(dra: bool, with_claims: list[str]) -> None:
    (configuration,) = webhooks(dra=dra)
    always = {"gpu-pods.carrel.dev", "visible-gpus.carrel.dev", "evictions.carrel.dev"}
    assert [each["name"] for each in configuration["webhooks"] if each["name"] not in always] == with_claims


def test_the_webhook_is_asked_about_pods_with_claims_of_all_namespaces() -> None:
    """Also of tools that see GPUs without asking: a pod that it has not seen gets no GPU by a claim."""
    entry, (configuration,) = webhook("claim-pods.carrel.dev"), webhooks(dra=True)

    assert "namespaceSelector" not in entry and "objectSelector" not in entry
    condition = named(entry["matchConditions"], "has-claims")
    assert condition.startswith("object.spec.?resourceClaims.orValue([]).size() > 0\n||")
    assert words_of(condition) == {"/"}, "any resource that is not Kubernetes' own may stand for a claim"
    assert words_of(named(entry["matchConditions"], "not-a-gpu-pod")) == {carrel.TIER}
    assert (entry["failurePolicy"], entry["timeoutSeconds"]) == ("Ignore", 5)
    order = [each["name"] for each in configuration["webhooks"]]
    assert order.index(entry["name"]) < order.index("visible-gpus.carrel.dev"), "that one waits for less long"


def test_the_webhook_is_asked_about_evictions_that_give_a_pod_longer_than_a_gpu_pod_may_take() -> None:
    entry = webhook("evictions.carrel.dev")

    assert named(entry["matchConditions"], "gives-very-long").endswith(f"> {LONGEST_GRACE_S}")
    assert (entry["failurePolicy"], entry["timeoutSeconds"]) == ("Ignore", 1)
    assert [rule["resources"] for rule in entry["rules"]] == [["pods/eviction"]]


def test_every_key_of_carrel_says_who_writes_it() -> None:
    """A key that is added to the dialects and not to the table of writers could not be written in a real cluster."""
    folder = Path(protected_keys.__file__).parent
    found = {key for file in folder.rglob("*.py") for key in OUR_KEY.findall(file.read_text())}
    known = {*WRITERS, *carrel.ASKED}

    assert found - known == set()
    assert {*protected_keys.annotations(), *ALL.written_labels, f"{kai.GPU_GROUP}/*"} <= known


def test_the_policy_lets_each_account_write_its_own_keys() -> None:
    """As in the table: account → keys."""
    expression = named(policy("carrel-protected-keys")["variables"], "own")
    parts = re.findall(rf"'{CARREL}([a-z-]+)': \[([^\]]*)\]", expression)
    made = {each["metadata"]["name"] for each in rbac() if each["kind"] == "ServiceAccount"}

    assert {account: set(LITERAL.findall(keys)) for account, keys in parts} == {
        writer.value: written_by(writer) for writer in Writer if writer is not Writer.RESERVATION
    }
    assert {writer.value for writer in Writer} <= made


def test_the_policy_lets_gpushares_plugin_mark_pods_and_write_nothing_else() -> None:
    expression = named(policy("carrel-protected-keys")["variables"], "own")
    parts = re.findall(rf"'((?!{CARREL})system:[a-z:-]+)': \[([^\]]*)\]", expression)

    assert {account: set(LITERAL.findall(keys)) for account, keys in parts} == WRITTEN_BY_PEERS
    assert {
        "system:serviceaccount:kube-system:gpushare-device-plugin": {
            "ALIYUN_COM_GPU_MEM_ASSIGNED",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
        }
    } == WRITTEN_BY_PEERS


def test_the_policy_for_agents_looks_at_everything_that_they_may_write() -> None:
    spec = policy("carrel-agents")
    looked_at = {
        (group, resource)
        for rule in spec["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    (role,) = [each for each in rbac() if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", "carrel-agent")]
    writing = {"create", "update", "patch", "delete"}
    written = {
        (group, resource)
        for rule in role["rules"]
        if writing & set(rule["verbs"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }

    assert written - looked_at == {("", "events")}
    assert {(each.group, each.plural) for each in (GPU_NODE_STATUSES, NODES, PODS)} <= looked_at
    assert words_of(named(spec["matchConditions"], "by-an-agent")) == {f"{CARREL}{Writer.AGENT.value}"}


def test_the_policy_protects_every_key_that_only_carrel_may_write() -> None:
    variables = policy("carrel-protected-keys")["variables"]

    assert words_of(named(variables, "protected")) == {
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

    assert words_of(named(spec["variables"], "asked")) - {"0"} == {*ASKING_ANNOTATIONS, *ALL.by_resource, *ALL.prefixes}
    assert words_of(named(spec["matchConditions"], "goes-elsewhere")) == {SCHEDULER}


def test_the_policy_for_gpu_pods_counts_while_the_webhook_is_asked_and_never_refuses_without_its_configuration() -> (
    None
):
    (configuration,) = webhooks()
    asks = named(policy("carrel-gpu-pods")["matchConditions"], "webhook-is-asked")

    assert policy("carrel-gpu-pods")["paramKind"]["kind"] == configuration["kind"]
    assert words_of(asks) == {configuration["webhooks"][0]["name"]}
    parameters = [each["spec"]["paramRef"] for each in policies() if "paramRef" in each["spec"]]
    assert parameters == [{"name": configuration["metadata"]["name"], "parameterNotFoundAction": "Allow"}]


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


def test_what_gpus_do_is_read_by_carrels_accounts_and_whoever_an_admin_names() -> None:
    """`view`, `edit` and `admin` are made of the roles that say so by a label."""
    roles = [each for each in rbac() if any("gpunodestatuses" in rule["resources"] for rule in each.get("rules", ()))]
    names = {each["metadata"]["name"] for each in roles}
    bindings = [each for each in rbac() if each.get("roleRef", {}).get("name") in names]
    assert {subject["kind"] for each in bindings for subject in each["subjects"]} == {"ServiceAccount"}
    assert not any(label.startswith("rbac.") for each in roles for label in each["metadata"].get("labels", ()))


@pytest.mark.parametrize(
    ("conditions", "accounts"),
    [
        pytest.param(webhook()["matchConditions"], {"controller"}, id="the webhook: who makes pods"),
        pytest.param(
            webhook("claim-pods.carrel.dev")["matchConditions"], {"controller"}, id="pods with claims: who makes pods"
        ),
        pytest.param(
            webhook("visible-gpus.carrel.dev")["matchConditions"], {"controller"}, id="other pods: who makes pods"
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
    for name in TRUSTING:
        assert named(policy(name)["matchConditions"], "not-by-trusted") == "!(request.userInfo.username in [])"


def test_the_manifests_for_the_embedded_api_differ_only_in_what_it_cannot_do() -> None:
    (given,) = webhooks(for_embedded_api=True)
    (real,) = webhooks()

    entry = real["webhooks"][0]
    del entry["matchConditions"]
    real["webhooks"] = [{**entry, "failurePolicy": "Ignore"}]
    assert given == real
