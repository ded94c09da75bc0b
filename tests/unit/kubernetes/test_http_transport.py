"""The transport over real sockets: TLS, credentials, and what a broken connection means."""

import asyncio
import os
import socket
import ssl
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop
from aiohttp import web

from carrel.kubernetes.client import Client
from carrel.kubernetes.cluster import Forbidden, MergePatch, OutcomeUnknown, Unavailable
from carrel.kubernetes.config import Access, Trust, access_to
from carrel.kubernetes.credentials import CredentialLocations, StoredCredentials
from carrel.kubernetes.http_transport import ConnectionLimits
from carrel.kubernetes.objects.resources import PODS
from carrel.kubernetes.transport import ApiRequest
from carrel.parsing import Malformed
from tests.kit.eventually import LIMIT_S
from tests.unit.kubernetes.certificates import Authority, Pair
from tests.unit.kubernetes.served import ASK, WRITES, asked, serving, transport_to
from tests.unit.kubernetes.test_config import kubeconfig, write


async def echo(request: web.BaseRequest) -> web.StreamResponse:
    """Answers with what it was told about the caller."""
    peer = request.transport.get_extra_info("peercert") if request.transport else None
    caller = dict(rdn[0] for rdn in peer["subject"])["commonName"] if peer else ""
    return web.json_response(
        {
            "caller": caller,
            "token": request.headers.get("authorization", ""),
            "path": request.path,
            "query": dict(request.query),
            "accepts": request.headers.get("accept-encoding", ""),
        }
    )


def server_tls(folder: Path, pair: Pair, clients: Authority | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (folder / "server.pem").write_text(pair.certificate + pair.key)
    context.load_cert_chain(folder / "server.pem")
    if clients is not None:
        context.load_verify_locations(cadata=clients.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class TestTls:
    async def test_a_server_is_trusted_by_its_authority(self, tmp_path: Path) -> None:
        authority = Authority()
        async with serving(echo, server_tls(tmp_path, authority.server())) as url:
            assert '"path"' in await asked(Access(url, trust=Trust(authority.certificate)))

    async def test_a_server_of_another_authority_is_not(self, tmp_path: Path) -> None:
        async with serving(echo, server_tls(tmp_path, Authority().server())) as url:
            with pytest.raises(Unavailable, match="certificate"):
                await asked(Access(url, trust=Trust(Authority().certificate)))
            with pytest.raises(Unavailable, match="certificate"):
                await asked(Access(url))

    async def test_with_insecure_every_server_is_trusted(self, tmp_path: Path) -> None:
        async with serving(echo, server_tls(tmp_path, Authority().server())) as url:
            assert '"path"' in await asked(Access(url, trust=Trust(insecure=True)))

    async def test_the_name_in_the_certificate_must_be_the_one_expected(self, tmp_path: Path) -> None:
        authority = Authority()
        pair = authority.server("kubernetes.default.svc", with_loopback=False)
        async with serving(echo, server_tls(tmp_path, pair)) as url:
            with pytest.raises(Unavailable, match="certificate"):
                await asked(Access(url, trust=Trust(authority.certificate)))
            assert '"path"' in await asked(Access(url, trust=Trust(authority.certificate, "kubernetes.default.svc")))

    async def test_a_client_certificate_identifies_us(self, tmp_path: Path) -> None:
        authority = Authority()
        alice = authority.person("alice")
        async with serving(echo, server_tls(tmp_path, authority.server(), authority)) as url:
            access = Access(
                url,
                StoredCredentials(CredentialLocations(certificate=alice.certificate, key=alice.key)),
                Trust(authority.certificate),
            )
            assert '"caller": "alice"' in await asked(access)
            with pytest.raises((Unavailable, OutcomeUnknown)):
                await asked(Access(url, trust=access.trust))

    async def test_a_client_certificate_is_replaced_while_we_run(self, tmp_path: Path) -> None:
        authority = Authority()
        files = {part: tmp_path / part for part in ("certificate", "key")}

        def become(name: str) -> None:
            pair = authority.person(name)
            for part, file in files.items():
                (tmp_path / "new").write_text(getattr(pair, part))
                (tmp_path / "new").rename(file)

        become("alice")
        async with serving(echo, server_tls(tmp_path, authority.server(), authority)) as url:
            access = Access(url, StoredCredentials(CredentialLocations(**files)), Trust(authority.certificate))
            async with transport_to(access) as transport:
                assert b'"caller": "alice"' in (await transport.send(ASK)).body
                become("bob")
                assert b'"caller": "bob"' in (await transport.send(ASK)).body

    async def test_a_plugin_may_give_the_certificate(self, tmp_path: Path) -> None:
        authority = Authority()
        carol = authority.person("carol")
        status = {"clientCertificateData": carol.certificate, "clientKeyData": carol.key}
        answer = {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": status}
        program = ["-c", f"import json; print(json.dumps({answer!r}))"]
        user = {"exec": {"apiVersion": answer["apiVersion"], "command": sys.executable, "args": program}}
        write(tmp_path, authority.certificate, "ca.pem")
        async with serving(echo, server_tls(tmp_path, authority.server(), authority)) as url:
            config = kubeconfig(user, {"server": url, "certificate-authority": "ca.pem"})
            assert '"caller": "carol"' in await asked(access_to(write(tmp_path, config), os.environ))

    @pytest.mark.parametrize("part", ["authorities", "pair"])
    async def test_an_invalid_certificate_is_reported(self, part: str) -> None:
        access = Access("https://127.0.0.1:1", trust=Trust("no certificate"))
        if part == "pair":
            access = Access(
                "https://127.0.0.1:1", StoredCredentials(CredentialLocations(certificate="no", key="secret-key"))
            )
        with pytest.raises(Malformed) as wrong:
            await asked(access)
        assert "PEM" in wrong.value.expected
        assert "secret-key" not in str(wrong.value)

    async def test_with_an_invalid_certificate_no_call_is_ever_sent(self) -> None:
        """Not even the second one, and not in plain text."""
        called = asyncio.Event()
        server = await asyncio.start_server(lambda reader, writer: called.set(), "127.0.0.1", 0)
        access = Access(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", trust=Trust("no certificate"))
        async with server, transport_to(access) as transport:
            for _ in range(3):
                with pytest.raises(Malformed):
                    await transport.send(ASK)
        assert not called.is_set()


class TestRequests:
    async def test_an_address_may_have_a_path_of_its_own(self) -> None:
        async with serving(echo) as url:
            request = replace(ASK, query={"labelSelector": "a in (b,c)", "continue": "a+/="})
            answer = await asked(Access(f"{url}/k8s/clusters/c-1"), request)
        assert '"path": "/k8s/clusters/c-1/api/v1/pods"' in answer
        assert '"labelSelector": "a in (b,c)"' in answer
        assert '"continue": "a+/="' in answer
        assert '"accepts": "identity"' in answer

    async def test_a_refused_token_is_read_again_and_the_call_repeated(self, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("old")
        seen = []

        async def rotating(request: web.BaseRequest) -> web.StreamResponse:
            seen.append(request.headers["authorization"])
            if seen[-1] == "Bearer old":
                # Rotated between the reading and the answer.
                (tmp_path / "next").write_text("new")
                (tmp_path / "next").rename(token)
                return web.json_response({}, status=401)
            return web.json_response({"items": []})

        async with (
            serving(rotating) as url,
            transport_to(Access(url, StoredCredentials(CredentialLocations(token=token)))) as transport,
        ):
            await Client(transport).list(PODS)
        assert seen == ["Bearer old", "Bearer new"]

    async def test_a_token_that_stays_refused_is_tried_once(self) -> None:
        calls = []

        async def refusing(request: web.BaseRequest) -> web.StreamResponse:
            calls.append(request.path)
            return web.json_response({}, status=401)

        async with (
            serving(refusing) as url,
            transport_to(Access(url, StoredCredentials(CredentialLocations("t")))) as transport,
        ):
            with pytest.raises(Forbidden):
                await Client(transport).list(PODS)
        assert len(calls) == 1

    async def test_a_header_that_is_sent_twice_is_read_twice(self, caplog: pytest.LogCaptureFixture) -> None:
        async def warning(request: web.BaseRequest) -> web.StreamResponse:
            answer = web.json_response({})
            for text in ("one", "two"):
                answer.headers.add("Warning", f'299 - "{text}"')
            return answer

        async with serving(warning) as url, transport_to(Access(url)) as transport:
            await Client(transport).patch(PODS, "train", MergePatch({}), "lab")
        assert [record.args[-1] for record in caplog.records if isinstance(record.args, tuple)] == ["one", "two"]

    @pytest.mark.parametrize("name", ["accept", "Accept"])
    async def test_a_call_may_ask_for_another_form_of_the_answer(self, name: str) -> None:
        seen: list[list[str]] = []

        async def noting(request: web.BaseRequest) -> web.StreamResponse:
            seen.append(request.headers.getall("accept"))
            return web.json_response({})

        async with serving(noting) as url:
            await asked(Access(url))
            await asked(Access(url), replace(ASK, headers={name: "text/plain"}))
        assert seen == [["application/json"], ["text/plain"]]

    async def test_a_redirect_is_not_followed(self) -> None:
        async def redirecting(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=302, headers={"location": "http://127.0.0.1:1/"})

        async with serving(redirecting) as url, transport_to(Access(url)) as transport:
            assert (await transport.send(ASK)).status == 302


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class TestWhatABrokenConnectionMeans:
    @pytest.mark.parametrize("request_", [ASK, *WRITES], ids=lambda request: request.method)
    async def test_no_server_is_unavailable(self, request_: ApiRequest) -> None:
        with pytest.raises(Unavailable) as unavailable:
            await asked(Access(f"http://127.0.0.1:{a_free_port()}"), request_)
        assert unavailable.value.reason == "NoConnection"

    async def test_an_unknown_host_is_unavailable(self) -> None:
        with pytest.raises(Unavailable):
            await asked(Access("http://no-such-host.invalid:6443"), WRITES[0])

    @pytest.mark.parametrize("request_", WRITES, ids=lambda request: request.method)
    async def test_a_write_that_was_sent_and_not_answered_is_unknown_and_never_sent_again(
        self, request_: ApiRequest
    ) -> None:
        received = []

        async def breaking(request: web.BaseRequest) -> web.StreamResponse:
            received.append(request.method)
            if request.method != "GET":
                assert request.transport is not None
                request.transport.abort()
            return web.json_response({})

        async with serving(breaking) as url, transport_to(Access(url)) as transport:
            # A kept connection is where a library is tempted to send again.
            await transport.send(ASK)
            with pytest.raises(OutcomeUnknown):
                await transport.send(request_)
        assert received == ["GET", request_.method]

    async def test_a_write_whose_answer_is_cut_short_is_unknown(self) -> None:
        async def cutting(request: web.BaseRequest) -> web.StreamResponse:
            response = web.StreamResponse(headers={"content-length": "100"})
            await response.prepare(request)
            await response.write(b'{"half":')
            assert request.transport is not None
            request.transport.close()
            return response

        async with serving(cutting) as url:
            with pytest.raises(OutcomeUnknown):
                await asked(Access(url), WRITES[0])

    async def test_a_server_that_does_not_answer_in_time_leaves_it_unknown(self) -> None:
        release = asyncio.Event()

        async def hanging(request: web.BaseRequest) -> web.StreamResponse:
            await release.wait()
            return web.json_response({})

        async with serving(hanging) as url, transport_to(Access(url), ConnectionLimits(whole_s=0.2)) as transport:
            with pytest.raises(OutcomeUnknown):
                await transport.send(WRITES[0])
            release.set()

    async def test_a_watch_that_does_not_begin_in_time_is_given_up(self) -> None:
        release = asyncio.Event()

        async def hanging(request: web.BaseRequest) -> web.StreamResponse:
            await release.wait()
            return web.json_response({})

        async with serving(hanging) as url, transport_to(Access(url), ConnectionLimits(whole_s=0.2)) as transport:
            with pytest.raises(OutcomeUnknown):
                await transport.send(replace(ASK, query={"watch": "true"}))
            release.set()

    async def test_waiting_for_a_free_connection_is_unavailable(self) -> None:
        release = asyncio.Event()
        arrived = asyncio.Event()

        async def hanging(request: web.BaseRequest) -> web.StreamResponse:
            arrived.set()
            await release.wait()
            return web.json_response({})

        limits = ConnectionLimits(connections=1, connect_s=0.2, whole_s=30)
        async with serving(hanging) as url, transport_to(Access(url), limits) as transport:
            first = asyncio.create_task(transport.send(WRITES[0]))
            await arrived.wait()
            with pytest.raises(Unavailable):
                await transport.send(WRITES[0])
            release.set()
            assert (await first).status == 200


class TestStreams:
    async def test_a_broken_watch_is_reported(self) -> None:
        async def breaking(request: web.BaseRequest) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n')
            assert request.transport is not None
            request.transport.close()
            return response

        async with (
            serving(breaking) as url,
            transport_to(Access(url)) as transport,
            Client(transport).watch(PODS, resource_version="1") as events,
        ):
            assert (await anext(events)).item is not None
            with pytest.raises(Unavailable, match="GET /api/v1/pods"):
                await anext(events)

    async def test_ending_a_watch_closes_its_connection(self) -> None:
        left = asyncio.Event()

        async def watching(request: web.BaseRequest) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            try:
                while True:
                    await response.write(b"\n")
                    await asyncio.sleep(0.01)
            finally:
                left.set()

        async with serving(watching) as url, transport_to(Access(url)) as transport:
            response = await transport.send(replace(ASK, query={"watch": "true"}))
            assert response.stream is not None
            await anext(response.stream)
            await response.stream.aclose()
            async with asyncio.timeout(LIMIT_S):
                await left.wait()

    async def test_a_refused_watch_is_an_answer(self) -> None:
        async def gone(request: web.BaseRequest) -> web.StreamResponse:
            return web.json_response({"kind": "Status"}, status=410)

        async with serving(gone) as url, transport_to(Access(url)) as transport:
            response = await transport.send(replace(ASK, query={"watch": "true"}))
        assert (response.status, response.stream) == (410, None)


def test_it_runs_on_the_loop_of_the_components_too(tmp_path: Path) -> None:
    async def ask() -> str:
        authority = Authority()
        async with serving(echo, server_tls(tmp_path, authority.server())) as url:
            return await asked(Access(url, trust=Trust(authority.certificate)))

    assert '"path"' in uvloop.run(ask())
