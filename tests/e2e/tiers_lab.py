"""A real kubelet with all of Carrel, where people create pods, and bookings are made in MAIA's JSON."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.e2e import maia
from tests.e2e.carrel_node import WHOLE, CarrelNode, a_pod, carrel_node
from tests.e2e.configuration import ADMIN
from tests.e2e.maia import MaiaBookings, maia_bookings
from tests.e2e.pods import Json, eventually, wait_for_phase
from tests.e2e.webhook import UserClient, Webhook, given_secrets, sealed_with

CONTROLLER = "system:serviceaccount:carrel:carrel-controller"
ADA, CAROL, EVE = "ada@lab.example", "carol@lab.example", "eve@lab.example"
TERMINATOR_TOKEN = "of-maias-webhook"
LIMIT_S = 180
"""For broken components; a revocation takes seconds."""


class Lab:
    def __init__(self, carrel: CarrelNode, bookings: MaiaBookings) -> None:
        self.carrel, self.api, self.bookings = carrel, carrel.api, bookings
        self.restart_controller()
        self.people = {name: UserClient(carrel.api, name) for name in (ADA, CAROL, EVE, ADMIN)}

    def restart_controller(self) -> None:
        """With the rights of its ServiceAccount, and no more. One that starts asks about all people at once."""
        self.carrel.controller.stop()
        groups = ["system:serviceaccounts", "system:serviceaccounts:carrel", "system:authenticated"]
        rights = self.api.kubeconfig_of(CONTROLLER, groups)
        service = ("--api-url", self.bookings.address)
        terminator = ("--terminator-port", "0")
        self.carrel.controller = self.carrel.start_controller("--kubeconfig", rights, *service, *terminator)

    def terminator(self) -> str:
        """Its URL."""
        begun = "terminator url="
        log = self.carrel.controller.log
        return eventually(lambda: log.read_text().rpartition(begun)[2] if begun in log.read_text() else "").split()[0]

    def create(self, who: str, ours: str, name: str) -> None:
        """A pod for one GPU, as a person writes it: with no word about tiers, schedulers or environment."""
        self.make(who, ours, a_pod(name, {WHOLE: "1"}))

    def make(self, who: str, ours: str, manifest: Json) -> None:
        manifest["spec"].pop("schedulerName", None)
        status, answer = self.people[who].call("POST", f"/api/v1/namespaces/{ours}/pods", manifest)
        assert status == 201, answer

    def run(self, who: str, ours: str, name: str) -> tuple[Json, str]:
        """The running pod, and the GPU that its container sees."""
        self.create(who, ours, name)
        placed = wait_for_phase(self.api, ours, name, "Running")
        return placed, self.sees(ours, name)

    def sees(self, ours: str, name: str, container: str = "main") -> str:
        return self.carrel.told(ours, name, container)["NVIDIA_VISIBLE_DEVICES"]

    def pod(self, ours: str, name: str) -> Json:
        return self.carrel.pods(ours)[name]

    def successor(self, ours: str, of: Json) -> Json:
        """The pod that runs under the name of the one that went."""

        def runs() -> Json | None:
            pod = self.carrel.pods(ours).get(of["metadata"]["name"])
            is_another = pod is not None and pod["metadata"]["uid"] != of["metadata"]["uid"]
            return pod if pod is not None and is_another and pod["status"]["phase"] == "Running" else None

        found = eventually(runs, LIMIT_S)
        assert found is not None
        return found

    def events(self, ours: str, pod: Json) -> dict[str, str]:
        """Reason → message; a line each, if it was told several times in different words."""
        told: dict[str, Any] = self.api.call("GET", f"/api/v1/namespaces/{ours}/events")
        messages: dict[str, list[str]] = {}
        for each in told["items"]:
            if each["involvedObject"].get("uid") == pod["metadata"]["uid"]:
                messages.setdefault(each["reason"], []).append(each["message"])
        return {reason: "\n".join(lines) for reason, lines in messages.items()}

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of an admin."""
        whole = [sys.executable, "-m", "carrel", *arguments, "--kubeconfig", str(self.api.kubeconfig)]
        return subprocess.run(whole, capture_output=True, text=True, check=False)

    def set_end(self, ours: str, name: str, end: datetime) -> None:
        """As a time in Tokyo: whoever reads only `Z` never ends the pod."""
        in_tokyo = (end + timedelta(hours=9)).replace(tzinfo=None).isoformat() + "+09:00"
        notes = {"metadata": {"annotations": {"terminate-at": in_tokyo}}}
        status, answer = self.people[ADMIN].call("PATCH", f"/api/v1/namespaces/{ours}/pods/{name}", notes)
        assert status == 200, answer


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def take_its_gpu(lab: Lab, ours: str) -> None:
    """From the only opportunistic pod: of the two GPUs, one person takes the other, and the next needs that one."""
    lab.run(CAROL, ours, "other")
    lab.create(ADA, ours, "booked")


@contextmanager
def tiers_lab(name: str, folder: Path) -> Iterator[Lab]:
    """Two GPUs; two people have a booking. `folder` is where bookings are kept."""
    with (
        sealed_with("a key that nobody knows"),
        given_secrets(CARREL_API_TOKEN=maia.TOKEN, CARREL_TERMINATOR_TOKEN=TERMINATOR_TOKEN),
        maia_bookings(folder, "Tesla-V100", gpus=2) as bookings,
        carrel_node(name) as carrel,
    ):
        for person in (ADA, CAROL):
            bookings.book(person)
        Webhook(carrel.api, "--api-url", bookings.address).install()
        yield Lab(carrel, bookings)
