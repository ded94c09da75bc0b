"""The thin Kubernetes client: config → transport → client → reflector → store; a work queue and leader election.

async with connect(access_from(os.environ)) as cluster:
    pods = Reflector(cluster, PODS, Store())
"""

from carrel.adapters.kube.client import Client

__all__ = ["Client"]
