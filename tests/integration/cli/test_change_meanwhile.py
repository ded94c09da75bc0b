"""`carrel change` when its answer is lost, or when somebody else changes the booking at that moment: it says “Changed”
only if the booking is what was asked for."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests.integration.cli.test_booking_commands import Person, Result
from tests.kit.booking_service import BookingProcess, booking_process


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BookingProcess]:
    with booking_process(tmp_path_factory.mktemp("booking")) as service:
        yield service


@contextmanager
def relay(url: str, *, before: Callable[[], object] = lambda: None, loses: bool = False) -> Iterator[str]:
    """Passes requests on. At the first PATCH it does something `before`, and may lose the answer."""
    firsts = ["PATCH"]

    class Handler(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            is_first = self.command in firsts
            if is_first:
                firsts.clear()
                before()
            body = self.rfile.read(int(self.headers.get("content-length") or 0)) or None
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
            asked = urllib.request.Request(url + self.path, body, headers, method=self.command)
            try:
                answer = urllib.request.urlopen(asked, timeout=60)
            except urllib.error.HTTPError as refused:
                answer = refused
            with answer:
                content = answer.read()
                if is_first and loses:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() in ("content-type", "etag"):
                        self.send_header(name, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = do_PATCH = pass_on  # noqa: N815 # names of the standard library

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


HOP_BY_HOP = {"host", "connection", "content-length", "accept-encoding", "transfer-encoding"}


def a_booking(person: Person) -> str:
    made = person.types("book", "a6000", "--from", "+1d", "--days", "2", "-o", "json")
    assert made.code == 0, made
    return str(json.loads(made.out)["id"])


def changed_through(person: Person, url: str, *words: str) -> Result:
    person.env["CARREL_URL"] = url
    return person.types("change", *words)


def test_a_model_is_not_called_changed_if_somebody_else_changed_the_booking_first(service: BookingProcess) -> None:
    ada, same_person = (Person(service, "ada@lab.example") for _ in range(2))
    id = a_booking(ada)
    with relay(service.url, before=lambda: same_person.types("change", id, "--days", "1")) as url:
        done = changed_through(ada, url, id, "--model", "a100")

    assert (done.code, "Changed" in done.out) == (5, False), done
    kept = json.loads(same_person.types("show", id, "-o", "json").out)
    assert (kept["model"], kept["version"]) == ("NVIDIA-RTX-A6000", 2)


def test_a_change_of_the_model_whose_answer_was_lost_is_called_changed(service: BookingProcess) -> None:
    eva = Person(service, "eva@lab.example")
    id = a_booking(eva)
    with relay(service.url, loses=True) as url:
        done = changed_through(eva, url, id, "--model", "a100")

    assert (done.code, "✓ Changed" in done.out, "NVIDIA-A100-SXM4-80GB" in done.out) == (0, True, True), done
