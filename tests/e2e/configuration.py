"""The configuration that components follow in these tests: an object in the cluster; or a file, for one process that
differs from the others."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from carrel.cluster.configuration_record import APPLIED, GIVEN, TEXT, body_of
from carrel.configuration.reading import laid_over
from testbed.control_plane import ApiServer
from tests.e2e.pods import eventually

OURS, ADMIN = "carrel", "admin"
"""Carrel's namespace, and whom its processes run as."""
NOTHING: Mapping[str, Any] = {}
WHAT_IS_APPLIED = f"/api/v1/namespaces/{OURS}/configmaps/{APPLIED}"


def text_of(content: Mapping[str, Any] = NOTHING) -> str:
    """With the one who runs the processes among those who may write what only Carrel writes."""
    return yaml.safe_dump(laid_over({"pods": {"trustedUsers": [ADMIN]}}, content))


def configure(api: ApiServer, content: Mapping[str, Any] = NOTHING) -> None:
    """Gives the cluster this configuration, as the chart does."""
    body = body_of(GIVEN, OURS, {TEXT: text_of(content)})
    api.kubectl("apply", "--filename", "-", given=json.dumps(body))


def wait_configured(api: ApiServer, content: Mapping[str, Any] = NOTHING) -> None:
    """The same, and waits until the leading controller has recorded it for all others."""
    configure(api, content)
    eventually(lambda: api.call("GET", WHAT_IS_APPLIED)["data"][TEXT] == text_of(content))


def own_configuration(api: ApiServer, name: str, content: Mapping[str, Any]) -> tuple[str, Path]:
    """The options of one process that has a configuration of its own."""
    file = api.run.data / f"{name}-configuration.yaml"
    file.write_text(text_of(content))
    return "--config", file
