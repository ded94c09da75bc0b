"""The chart gpu-booking in a cluster: its names, what MAIA's document does by hand, and the commands of an admin."""

import os
import subprocess
import sys

from testbed.clients import kubectl
from testbed.control_plane import ApiServer
from tests.e2e.chart import CHART

GPU_BOOKING = CHART.parent / "gpu-booking"
NAMESPACE = "gpu-booking"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpu-booking-webhook"
PATCH = (  # MAIA's document, word for word
    "kubectl patch mutatingwebhookconfiguration gpu-booking-webhook -n gpu-booking --type='json' "
    "-p=\"[{'op': 'replace', 'path': '/webhooks/0/clientConfig/caBundle', 'value': "
    r"\"$(kubectl get secret gpu-booking-webhook-tls -n gpu-booking -o jsonpath='{.data.ca\.crt}')\"}]"
    '"'
)


def carrel(api: ApiServer, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of an admin, who is not asked anything."""
    command = [sys.executable, "-m", "carrel", *words, "--kubeconfig", str(api.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def follow_the_document(api: ApiServer) -> None:
    """What its last step types, in a shell."""
    path = f"{kubectl().parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "KUBECONFIG": str(api.kubeconfig)}
    subprocess.run(["bash", "-c", PATCH], env=environment, check=True, capture_output=True)
