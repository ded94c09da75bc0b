"""What a hub of the tests reads: its settings, its credentials, and free ports. How to start it follows from them."""

import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.ports import free_ports

ROOT = Path(__file__).parents[3]
NAMESPACE = "jhub"
HUB = f"system:serviceaccount:{NAMESPACE}:hub"


@dataclass(frozen=True)
class HubFiles:
    """A hub that can be started in its folder."""

    url: str
    token: str
    """Of a service that may do everything with users and servers."""
    command: list[str]
    variables: dict[str, str]
    """What it needs in its environment."""


@dataclass(frozen=True)
class HubAccess:
    """How the hub reaches the others."""

    kubeconfig: Path
    kubernetes_token: str
    booking_url: str
    proxy: Sequence[str]
    """How it starts its proxy."""


def write_hub_files(folder: Path, access: HubAccess, notebook_port: int, spawner: Mapping[str, Any]) -> HubFiles:
    """`spawner`: settings of the KubeSpawner. 0 for the port of notebooks: any."""
    proxy, proxy_api, hub, any_port = free_ports(4)
    url, token = f"http://127.0.0.1:{proxy}", secrets.token_hex()
    (folder / "token").write_text(access.kubernetes_token)
    bed = {
        "example": str(ROOT / "examples" / "jupyterhub_config.py"),
        "url": url,
        "hub_url": f"http://127.0.0.1:{hub}",
        "proxy": list(access.proxy),
        "proxy_api_url": f"http://127.0.0.1:{proxy_api}",
        "token": token,
        "token_file": str(folder / "token"),
        "namespace": NAMESPACE,
        "notebook_port": notebook_port or any_port,
        "spawner": dict(spawner),
    }
    (folder / "bed.json").write_text(json.dumps(bed))
    variables = {
        "HUB_BED": str(folder / "bed.json"),
        "KUBECONFIG": str(access.kubeconfig),
        "CARREL_BOOKING_URL": access.booking_url,
    }
    config = Path(__file__).parent / "hub_config.py"
    return HubFiles(url, token, [sys.executable, "-m", "jupyterhub", "--config", str(config)], variables)
