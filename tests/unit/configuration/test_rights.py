"""Who may write which part of the configuration, by the roles that are installed."""

from importlib.resources import files
from typing import Any

import yaml

from carrel.cluster.configuration_record import APPLIED, CHANGES, GIVEN

WRITES = {"create", "update", "patch", "delete", "deletecollection", "*"}


def written_by(account: str) -> dict[str, set[str]]:
    """Name of a ConfigMap in Carrel's namespace, or empty for any → what this account may do to it."""
    objects = list(yaml.safe_load_all((files("carrel.manifests") / "rbac.yaml").read_text()))
    roles = {(each["kind"], each["metadata"]["name"]): each for each in objects if each.get("rules")}
    found: dict[str, set[str]] = {}
    for binding in objects:
        if account in [each["name"] for each in binding.get("subjects") or ()]:
            role: Any = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
            for rule in role["rules"]:
                if {"configmaps", "*"} & set(rule["resources"]):
                    for name in rule.get("resourceNames", [""]):
                        found.setdefault(name, set()).update(WRITES & set(rule["verbs"]))
    return {name: verbs for name, verbs in found.items() if verbs}


def test_the_booking_service_may_write_what_people_change_and_nothing_else() -> None:
    assert written_by("carrel-booking") == {CHANGES: {"update"}}, "a stolen token changes no unit, hub or account"


def test_only_the_controller_writes_what_is_in_force() -> None:
    objects = yaml.safe_load_all((files("carrel.manifests") / "rbac.yaml").read_text())
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    writers = {each for each in accounts if {"", APPLIED, GIVEN} & written_by(each).keys()}
    assert writers == {"carrel-controller"}
