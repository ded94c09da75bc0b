"""`carrel demo`: try Carrel without a cluster. Nothing leaves the machine.

The extender and the agents run in this process, on the embedded Kubernetes API. Booking service, webhook and controller
are the real commands, each in a process of its own. Machines, kubelets, kube-scheduler and users are simulated.

Reading order:

    run          reads the files, starts the demo, shows it until it ends
    system       everything together in one process; simulates kube-scheduler, which calls the extender over HTTP
    component_processes    booking service, webhook and controller as processes
    kubelets nodes         simulates the kubelets of all nodes; with Carrel's agent on each
    bookings     who has booked what, also in the past
    usage_history    what people held and used in the past
    story        what a booking is worth, and who loses a GPU: the same in every run
    workload     creates and deletes pods, as users do
    screen       who holds what, for a terminal or as plain lines
"""

from dataclasses import dataclass
from pathlib import Path

from carrel.configuration.schema import PluginMode
from carrel.option_fields import option
from kubernetes_in_memory.command import api_command


@dataclass(frozen=True)
class DemoSettings:
    cluster: Path | None = option(None, "Nodes and GPUs, as YAML; without it, a small lab.")
    pods: Path | None = option(None, "Pods and GpuClaims to run; without it, every dialect.")
    port: int = option(0, "Port of the embedded Kubernetes API; 0: any free one.", min=0)
    mode: PluginMode = option(
        PluginMode.NATIVE, "Which device plugin hands GPUs over: Carrel's, or NVIDIA's (coexist)."
    )
    days: int = option(0, "Begin with bookings and usage of so many simulated days before now.", min=0, max=366)
    once: bool = option(False, "Play the story, and end: with 0 if it came true.", "--once")
    seconds: float = option(0, "Stop after so many seconds; 0: when you press Ctrl-C.", min=0)
    seed: int = option(1, "Seed of the order in which pods are created, and of the history.")


def demo(settings: DemoSettings) -> None:
    """Run Carrel on an embedded Kubernetes API with simulated GPUs, and watch who holds what.

    It begins with a story: from whom a GPU is taken back for a booked pod. Then pods of every dialect are created and
    deleted; each line shows a GPU, who holds how much of it, and why others wait.
    With --mode coexist, NVIDIA's device plugin hands the GPUs over, and reservation pods hold those that pods share.
    While it runs, kubectl works against it, and people can book: both addresses are in its headline.
    With --once the code at the end is 1 if the story did not come true, and 130 if it was stopped before.

    Examples:

      carrel demo

      carrel demo --days 30

      carrel demo --mode coexist

      carrel demo --once && echo "Carrel works here"

      carrel demo --cluster my-cluster.yaml --pods my-pods.yaml
    """
    # At once: to import the rest takes seconds on a slow machine.
    print("Carrel demo: starting. All of it runs on this machine; Ctrl-C ends it.", flush=True)
    from carrel.demo.run import run_demo

    run_demo(settings)


api = api_command("carrel api")
