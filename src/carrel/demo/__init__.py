"""`carrel demo`: try Carrel without a cluster. Nothing leaves the machine.

The extender runs in this process, on the embedded Kubernetes API. Booking service, webhook and controller are the real
commands, each in a process of its own. Nodes, kubelets, kube-scheduler and users are simulated.

Reading order:

    run          reads the files, starts the demo, shows it until it ends
    system       everything together in one process
    component_processes    booking service, webhook and controller as processes
    simulated_scheduler    simulates kube-scheduler: calls the extender over HTTP
    kubelets     simulates the kubelets of all nodes
    story        what a booking is worth, and who loses a GPU: the same in every run
    workload     creates and deletes pods, as users do
    screen       who holds what, for a terminal or as plain lines
"""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    cluster: Annotated[Path | None, typer.Option(help="Nodes and GPUs, as YAML; without it, a small lab.")] = None,
    pods: Annotated[Path | None, typer.Option(help="Pods and GpuClaims to run; without it, every dialect.")] = None,
    port: Annotated[int, typer.Option(help="Port of the embedded Kubernetes API; 0: any free one.", min=0)] = 0,
    seconds: Annotated[float, typer.Option(help="Stop after so many seconds; 0: when you press Ctrl-C.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the random order in which pods are created.")] = 1,
) -> None:
    """Run Carrel on an embedded Kubernetes API with simulated GPUs, and watch who holds what.

    Pods of every dialect are created and deleted; each line shows a GPU, who holds how much of it, and why others wait.
    While it runs, kubectl works against it: the address is in the first line.

    Examples:

      carrel demo

      carrel demo --cluster my-cluster.yaml --pods my-pods.yaml

      carrel demo --seconds 10 | tail -20
    """
    from carrel.demo.run import run_demo

    run_demo(cluster, pods, port=port, seconds=seconds, seed=seed)
