"""The booking service: whether it answers, whether its tables are of this version, whether its objects agree."""

from collections.abc import Sequence
from importlib.resources import files

from carrel.cli.checks.components import ComponentPod, Measures, ask, ask_metrics, component_pods, newest
from carrel.cli.checks.finding import Finding, Installation, fail, ok, warn
from carrel.dialects.booking_objects import BOOKINGS, is_from_enquiry, read_entitlement
from carrel.kubernetes.cluster import ClusterError, Forbidden
from carrel.parsing.malformed import Malformed

API_URL = ("CARREL_API_URL", "API_URL")
COMPARED_EVERY_S = 30.0
SILENT_S = 4 * COMPARED_EVERY_S
LOGS = "logs deployment/carrel-booking"
NO_SERVICE = "Carrel's own booking service is not installed"


async def _service_pods(of: Installation) -> Sequence[ComponentPod]:
    return await component_pods(of, "booking")


async def booking_service(of: Installation) -> Sequence[Finding]:
    pods = await component_pods(of)
    own = [each for each in pods if each.component == "booking"]
    controller = newest(pods, "controller")
    elsewhere = controller.given(*API_URL) if controller else ""
    if elsewhere and _take_bookings(own):
        text = f"bookings are also made at {elsewhere}: a GPU may be booked in both, and both write Booking objects"
        return [fail(text, of.with_values("booking.enabled=false"))]
    if elsewhere and not own:
        return [await _elsewhere(of, pods, elsewhere)]
    if not own:
        return [ok(f"{NO_SERVICE}, and no other is named: all GPU pods are opportunistic")]
    for pod in own:
        try:
            answer = await ask(of, pod, "/readyz")
        except Forbidden:
            raise
        except ClusterError as error:
            return [fail(f"{pod.metadata.name} does not answer: {error.message}", of.kubectl(LOGS))]
        if answer.status != 200:
            return [fail(f"{pod.metadata.name} is not ready: {answer.text}", of.kubectl(LOGS))]
    if elsewhere:
        return [await _elsewhere(of, pods, elsewhere)]
    return [ok("it answers, and so does its database")]


def _take_bookings(own: Sequence[ComponentPod]) -> bool:
    """Whether one of them does, and does not only show the map and the usage."""
    return not all(each.given("CARREL_BOOKINGS_ELSEWHERE") for each in own)


async def _elsewhere(of: Installation, pods: Sequence[ComponentPod], url: str) -> Finding:
    failures = 0.0
    for pod in pods:
        if pod.component == "webhook":
            failures += (await ask_metrics(of, pod)).total("carrel_booking_service_failures_total") or 0.0
    if failures:
        text = f"{url} did not answer {failures:,.0f} calls of the webhook: people count as having no booking then"
        return warn(text, of.kubectl("logs deployment/carrel-webhook"))
    return ok(f"bookings are made at {url}, and no call failed")


async def database(of: Installation) -> Sequence[Finding]:
    pods = await _service_pods(of)
    if not pods:
        return [ok(NO_SERVICE)]
    wanted = newest_migration()
    for pod in pods:
        there = (await ask_metrics(of, pod)).label("carrel_database_migration", "revision")
        if not there:
            return [warn(f"{pod.metadata.name} does not say of which version its tables are", of.kubectl(LOGS))]
        if there < wanted:
            text = f"its tables are at level {there}, and this program knows level {wanted}: an older service made them"
            return [warn(text, of.install)]
        if there > wanted:
            return [ok(f"its tables are at level {there}, of a newer version; the service says that it may use them")]
    return [ok(f"its tables are at level {wanted}, the newest")]


def newest_migration() -> str:
    """By the names of the files, as `v0001_first_release.py`: to import them would load the database's libraries."""
    folder = files("carrel.bookings.store.migrations") / "versions"
    numbers = [each.name.split("_")[0].removeprefix("v") for each in folder.iterdir() if each.name.startswith("v0")]
    return max(numbers)


async def mirrored_bookings(of: Installation) -> Sequence[Finding]:
    objects = (await of.client.list(BOOKINGS)).items
    for each in objects:
        try:
            read_entitlement(each)
        except Malformed as malformed:
            return [
                fail(f"it entitles to nothing: {malformed}", f"kubectl get booking {each.metadata.name} --output yaml")
            ]
    own = [each for each in objects if not is_from_enquiry(each)]
    pods = await _service_pods(of)
    if not _take_bookings(pods):
        if own:
            text = (
                f"{len(own)} Booking objects are of a booking service that is not there: nobody keeps them up to date"
            )
            return [warn(text, "kubectl get bookings.carrel.dev")]
        return [ok(f"{len(objects)} Booking objects, written by the controller")]
    for pod in pods:
        if (wrong := _of_mirror(of, pod.metadata.name, await ask_metrics(of, pod))) is not None:
            return [wrong]
    return [ok(f"{len(own)} Booking objects, which agree with the database")]


def _of_mirror(of: Installation, name: str, measured: Measures) -> Finding | None:
    age = measured.total("carrel_booking_mirror_age_seconds")
    different = measured.total("carrel_booking_mirror_differences")
    if age is None:
        return warn(f"{name} does not say when it compared them", of.kubectl(LOGS))
    if age > SILENT_S:
        text = f"{name} last compared them with its database {age:,.0f} s ago: pods do not follow changes of bookings"
        return fail(text, of.kubectl(LOGS))
    if different:
        text = f"{different:,.0f} objects differed when they were last compared; they are corrected at once"
        return warn(text, "carrel doctor, once more in a minute")
    return None
