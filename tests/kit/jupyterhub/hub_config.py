"""What the hub of the tests has besides `examples/jupyterhub_config.py`: its ports, its users, its proxy."""

import json
import os
from pathlib import Path

from carrel.demo.kubelets import pod_address
from carrel.jupyterhub import booking_service

bed = json.loads(Path(os.environ["HUB_BED"]).read_text())
c = get_config()  # type: ignore[name-defined] # noqa: F821 # the hub defines it
load_subconfig(bed["example"])  # type: ignore[name-defined] # noqa: F821 # and this

c.JupyterHub.bind_url = bed["url"]
c.JupyterHub.hub_bind_url = bed["hub_url"]
c.JupyterHub.hub_connect_url = bed["hub_url"]
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.db_url = "sqlite:///hub.sqlite"
c.JupyterHub.cleanup_servers = False
# A call about a server that is slow to start or to stop is answered after a second, not after ten.
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 1, "slow_stop_timeout": 1}
c.JupyterHub.services = [{"name": "tests", "api_token": bed["token"]}]
c.JupyterHub.load_roles = [
    {"name": "tests", "scopes": ["admin:users", "admin:servers", "access:servers"], "services": ["tests"]}
]
c.ConfigurableHTTPProxy.command = bed["proxy"]
c.ConfigurableHTTPProxy.api_url = bed["proxy_api_url"]
c.ConfigurableHTTPProxy.auth_token = bed["token"]

c.CarrelSpawner.token_file = bed["token_file"]
c.KubeSpawner.namespace = bed["namespace"]
c.KubeSpawner.image = "notebook:1"
c.KubeSpawner.cmd = ["jupyterhub-singleuser"]
c.KubeSpawner.port = bed["notebook_port"]
c.KubeSpawner.delete_grace_period = 10
booking_service.TIMEOUT_S = 120.0
c.Spawner.http_timeout = 120
c.Spawner.start_timeout = 120
has_internal_ssl = bed["spawner"].pop("internal_ssl", False)
for name, value in bed["spawner"].items():
    c.KubeSpawner[name] = value
if has_internal_ssl:
    # There is no cluster DNS either, so certificates are for addresses, which pods have by their names.
    c.JupyterHub.internal_ssl = True
    for name in ("hub_bind_url", "hub_connect_url"):
        c.JupyterHub[name] = bed["hub_url"].replace("http:", "https:")
    c.ConfigurableHTTPProxy.api_url = bed["proxy_api_url"].replace("http:", "https:")
    c.KubeSpawner.ssl_alt_names = lambda spawner: [f"IP:{pod_address(spawner.pod_name, 127)}"]
    c.KubeSpawner.get_pod_url = lambda spawner, pod: f"https://{pod['status']['podIP']}:{bed['notebook_port']}"
elif bed["spawner"].get("services_enabled"):
    # There is no cluster network: the name of the Service leads to the pod, as the cluster's DNS would.
    c.KubeSpawner.get_pod_url = lambda spawner, pod: f"http://{pod['status']['podIP']}:{bed['notebook_port']}"
