"""What `carrel why` says where the cluster cannot be read: the booking service tells about the person's own pods."""

from carrel.cli.booking_client import BookingClient, ask_service, known_login
from carrel.cli.booking_text import Json
from carrel.cli.why import WhySettings, print_answer, print_answers
from carrel.command_errors import NOT_FOUND, USAGE, command_failed


def print_own_pods(settings: WhySettings, name: str) -> None:
    """Of the pods with this name, or of all that wait."""
    service = settings.booking_settings()
    if not known_login(service).server:
        why = "This machine may not read the cluster, and CARREL_URL does not say where the booking service is."
        raise command_failed(
            "Nobody can be asked about your pods", why, "export CARREL_URL=https://hub.lab.org/services/carrel", USAGE
        )

    async def ask(client: BookingClient) -> list[Json]:
        found: list[Json] = (await client.call("GET", "/pods")).body["items"]
        return found

    pods = [each for each in ask_service(service, ask) if _is_meant(settings, each, name)]
    if not name:
        waiting = [_answer(each) for each in pods if each["waits"]]
        print_answers(waiting, settings.output, "None of your pods waits for a GPU.")
        return
    if not pods:
        why = "The booking service knows your own pods that ask for GPUs, and there is none with this name."
        raise command_failed(f"No pod {name} of yours", why, "carrel why", NOT_FOUND)
    for each in pods:
        print_answer(_answer(each), settings.output)


def _is_meant(settings: WhySettings, pod: Json, name: str) -> bool:
    namespace, _, own_name = str(pod["pod"]).partition("/")
    return settings.namespace in ("", namespace) and name in ("", own_name)


def _answer(pod: Json) -> Json:
    """In the form that the cluster's answer has."""
    return {field: pod[field] for field in ("pod", "why", "booking", "held_by")}
