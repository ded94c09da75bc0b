"""A kubeconfig for the embedded API: where it is, and which certificate to trust.

Any token is accepted, since there are no users; but kubectl asks for a password if it finds no token.
"""

import base64
from typing import Any

import yaml

from kubernetes_in_memory.http_server import Served

NAME = "in-memory"


def kubeconfig_for(served: Served) -> str:
    cluster: dict[str, Any] = {"server": served.url}
    if served.certificate is not None:
        cluster["certificate-authority-data"] = base64.b64encode(served.certificate.pem).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": {"token": NAME}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}],
        "current-context": NAME,
    }
    return yaml.safe_dump(config, sort_keys=False)
