"""`carrel why`, `explain`, `inspect`, `adopt`, `release` as people run them, on the embedded API over HTTP."""

import asyncio
import json
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path

import pytest
import yaml

from carrel.cluster.options import ClusterOptions
from carrel.dialects.gpuclaim_objects import GPU_NODE_STATUSES
from carrel.dialects.options import DialectOptions, Unit
from carrel.dialects.seal import Seal
from carrel.kubernetes.cluster import BindTarget, DeleteOptions, MergePatch
from carrel.kubernetes.objects.resources import LEASES, NODES, PODS
from carrel.ledger.gpus import Node
from carrel.ledger.refusals import Refusal
from carrel.ledger.tiers import TierPolicy
from carrel.parsing.time import instant, local
from kubernetes_in_memory.http_server import serve
from tests.kit.carrel_command import Result, carrel, carrel_process
from tests.kit.eventually import LIMIT_S, eventually
from tests.kit.gpus import N1, a_node, divided_gpu
from tests.kit.lab import Lab, a_lab

LOST = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-11-16T11:00:00Z"}
AWAY = MergePatch({"status": {"conditions": [LOST]}})


@asynccontextmanager
async def a_full_lab() -> AsyncIterator[tuple[Lab, str]]:
    """lab/tenant has 12,000 MiB of GPU 0 of n1, lab/other a whole GPU of n2; lab/train waits for 9,000 MiB."""
    async with (
        a_lab([a_node("n1", gpus=1), a_node("n2", gpus=1)], in_real_time=True) as lab,
        serve(lab.api) as served,
    ):
        async with lab.replica() as replica:
            await replica.bind(await lab.pod("tenant", limits={"aliyun.com/gpu-mem": "12000"}), "n1")
            await replica.bind(await lab.pod("other", limits={"nvidia.com/gpu": "1"}), "n2")
        await lab.pod("train", limits={"aliyun.com/gpu-mem": "9000"})
        await lab.pod("web")
        yield lab, served.url


@pytest.mark.parametrize(
    "words",
    [
        ("why", "-A"),
        ("explain", "train", "-n", "lab"),
        ("inspect", "-d"),
        ("gpus",),
        ("adopt", "--dry-run"),
        ("release", "n1", "--dry-run"),
        ("purge", "--dry-run"),
        ("scheduler-config",),
    ],
    ids=lambda words: words[0],
)
async def test_each_command_says_the_same_as_a_process(words: tuple[str, ...]) -> None:
    """The other tests run it in their own process, because that is faster. `snapshot` and `simulate` follow below."""
    async with a_full_lab() as (_, url):
        server = () if words[0] == "scheduler-config" else ("--server", url)
        said = await carrel_process(*words, *server)
        assert said == await carrel(*words, *server)
    assert said.out


async def test_why_says_what_is_missing_and_who_holds_it() -> None:
    async with a_full_lab() as (_, url):
        said = await carrel("why", "pod/train", "-n", "lab", "--server", url)

    assert (said.code, said.err) == (0, "")
    assert said.out == (
        "none of 2 nodes has 9,000 MiB on one GPU; closest: "
        "GPU 0 of n1 has 4,276 MiB free, 9,000 MiB asked; held by lab/tenant\n"
        "Booking: keeps its GPU: it is older than Carrel\n"
        "Held by:\n"
        "  GPU 0 of n1 (NVIDIA-RTX-A6000): lab/tenant, keeps its GPU, use unknown\n"
        "  GPU 0 of n2 (NVIDIA-RTX-A6000): lab/other, keeps its GPU, use unknown\n"
    )


async def test_gpus_says_who_holds_what_of_each_gpu_and_what_is_free() -> None:
    async with a_full_lab() as (_, url):
        table = await carrel("gpus", "--server", url)
        one = json.loads((await carrel("gpus", "n2", "-o", "json", "--server", url)).out)
        nowhere = await carrel("gpus", "n9", "--server", url)

    no_sample = "unknown: no sample"
    assert [re.split(r" {2,}", line) for line in table.out.splitlines()] == [
        ["NODE", "GPU", "MODEL", "MEMORY", "POD", "PERSON", "HOW LONG", "USE"],
        ["n1", "0", "NVIDIA-RTX-A6000", "11.7 GiB of 15.9 GiB", "lab/tenant", "–", "keeps its GPU", no_sample],
        ["n1", "0", "NVIDIA-RTX-A6000", "4.2 GiB of 15.9 GiB", "free", "–", "–", "–"],
        ["n2", "0", "NVIDIA-RTX-A6000", "15.9 GiB of 15.9 GiB", "lab/other", "–", "keeps its GPU", no_sample],
    ]
    assert one == [
        {
            "node": "n2",
            "gpu": 0,
            "model": "NVIDIA-RTX-A6000",
            "of_mib": 16276,
            "mib": 16276,
            "pod": "lab/other",
            "user": "",
            "booked_until": None,
            "remark": "keeps its GPU",
            "activity": "unknown",
            "idle_since": None,
            "use": no_sample,
        }
    ]
    assert (nowhere.code, nowhere.err.splitlines()[0]) == (4, "✗ No GPUs on n9")


async def test_why_says_which_booking_covers_a_pod_and_who_holds_what_until_when() -> None:
    """ada has booked one of two GPUs; bob, who has booked none, has the other; she has two more pods."""
    ada = {"carrel.dev/user": "ada@lab.example", "carrel.dev/tier": "opportunistic"}
    bob = {**ada, "carrel.dev/user": "bob@lab.example"}
    whole = {"nvidia.com/gpu": "1"}
    async with a_lab([a_node("n1", gpus=2)], in_real_time=True) as lab, serve(lab.api) as served:
        booking = await lab.book(gpus=1)
        async with lab.replica() as replica:
            await replica.bind(await lab.pod("first", limits=whole, annotations=ada), "n1")
            await replica.bind(await lab.pod("theirs", limits=whole, annotations=bob), "n1")
        await lab.pod("second", limits=whole, annotations=ada)
        where = ("-n", "lab", "--server", served.url)
        first, second = await carrel("why", "first", *where), await carrel("why", "second", *where, "-o", "json")
        details = await carrel("inspect", "-d", "--server", served.url)
    until = local(instant(booking["spec"]["end"], "", ""), UTC)

    assert first.out == (
        f"lab/first does not wait: it is on n1, GPU 0\nBooking: covered by your booking of 1 GPU until {until}\n"
        "Use: unknown: its node has reported no sample yet\n"
    )
    answer = json.loads(second.out)
    assert answer["booking"] == "your booking of 1 GPU is in use by lab/first; this pod waits for what is free"
    assert answer["held_by"] == [
        f"GPU 0 of n1 (NVIDIA-RTX-A6000): lab/first of ada@lab.example, booked until {until}, use unknown",
        "GPU 1 of n1 (NVIDIA-RTX-A6000): lab/theirs of bob@lab.example, opportunistic: may be asked back, use unknown",
    ]
    assert details.out.splitlines()[3].endswith("BOOKED UNTIL")
    assert details.out.splitlines()[4].endswith(until)
    assert details.out.splitlines()[5].endswith("–")


async def test_why_knows_how_much_one_person_may_hold_without_a_booking() -> None:
    eve = {"carrel.dev/user": "eve@lab.example", "carrel.dev/tier": "opportunistic"}
    whole = {"nvidia.com/gpu": "1"}
    async with a_lab([a_node("n1", gpus=2)], in_real_time=True) as lab, serve(lab.api) as served:
        async with lab.replica() as replica:
            await replica.bind(await lab.pod("first", limits=whole, annotations=eve), "n1")
        await lab.pod("second", limits=whole, annotations=eve)
        asked = ("why", "second", "-n", "lab", "--server", served.url)
        no_limit = await carrel(*asked, CARREL_OPPORTUNISTIC_GPUS="1")
        await lab.report_rules(ClusterOptions(tier_policy=TierPolicy(opportunistic_gpus=1)))
        limited = await carrel(*asked)

    assert no_limit.out.startswith("there is room for lab/second"), "only what the scheduler reports counts"
    told = "eve@lab.example holds 1 GPU without a booking; more than 1 are not given to one person"
    assert limited.out.splitlines()[0] == told


@pytest.mark.parametrize(
    ("pod", "answer"),
    [
        (
            "tenant",
            "lab/tenant does not wait: it is on n1, GPU 0\nBooking: keeps its GPU: it is older than Carrel\n"
            "Use: unknown: its node has reported no sample yet\n",
        ),
        ("po/web", "lab/web requests no GPU, so it does not wait for Carrel\n"),
    ],
)
async def test_why_of_a_pod_that_does_not_wait(pod: str, answer: str) -> None:
    async with a_full_lab() as (_, url):
        assert (await carrel("why", pod, "-n", "lab", "--server", url)).out == answer


@pytest.mark.parametrize(
    ("mark", "answer"),
    [
        (
            {"at": "2026-11-16T14:02:00Z", "why": "revoked", "from": "uid-1"},
            "lab/lost: this pod runs without a GPU: the one that it had was needed for a booked pod on "
            "Mon 16 Nov 14:02 UTC. Now: ",
        ),
        (
            {"at": "2026-11-16T14:02:00Z", "why": "expired", "from": "uid-1"},
            "lab/lost: this pod runs without a GPU: its booking ended on Mon 16 Nov 14:02 UTC. Now: ",
        ),
        ("nonsense", "lab/lost requests no GPU, so it does not wait for Carrel\n"),
    ],
    ids=["revoked", "expired", "an unreadable record"],
)
async def test_why_of_a_pod_that_lost_its_gpu(mark: object, answer: str) -> None:
    async with a_full_lab() as (lab, url):
        await lab.pod("lost", annotations={"carrel.dev/handed-over": json.dumps(mark)})

        assert (await carrel("why", "lost", "-n", "lab", "--server", url)).out.startswith(answer)


async def test_why_of_a_pod_that_runs_without_the_gpu_that_it_asked_for() -> None:
    async with a_full_lab() as (lab, url):
        notes = {"carrel.dev/runs-without-gpu": "this pod runs without a GPU: none was free"}
        await lab.pod("notebook", annotations={**notes, "carrel.dev/asked-for": '{"gpus": 1}'})

        said = (await carrel("why", "notebook", "-n", "lab", "--server", url)).out
        assert said.startswith("lab/notebook: this pod runs without a GPU: none was free. Now: ")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        pytest.param("why --server {url} -n lab t", {"tenant", "train"}, id="by their beginning"),
        pytest.param("why --server {url} -n lab pod/w", {"pod/web"}, id="as kubectl names them"),
        pytest.param("why --server {url} -n other t", set(), id="of another namespace"),
        pytest.param("explain --server http://127.0.0.1:9 -n lab t", set(), id="where nobody answers"),
    ],
)
async def test_the_shell_completes_pods(words: str, offered: set[str]) -> None:
    async with a_full_lab() as (_, url):
        typed = f"carrel {words.format(url=url)}"
        env = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_CARREL_COMPLETE": "complete_bash"}
        assert set((await carrel(**env)).out.split()) == offered


async def test_why_without_a_pod_lists_all_pods_that_wait() -> None:
    async with a_full_lab() as (_, url):
        everywhere = await carrel("why", "-A", "--server", url)
        data = await carrel("why", "-A", "--server", url, "-o", "json")
        here = await carrel("why", "--server", url)

    assert everywhere.out.startswith("lab/train: none of 2 nodes has 9,000 MiB on one GPU")
    assert [each["pod"] for each in json.loads(data.out)] == ["lab/train"]
    assert here.out == "No pod waits for a GPU in default; -A shows all namespaces.\n"


async def test_explain_shows_each_gpu_and_what_is_missing_there() -> None:
    async with a_full_lab() as (_, url):
        said = await carrel("explain", "pod/train", "-n", "lab", "--server", url)
        data = await carrel("explain", "pod/train", "-n", "lab", "--server", url, "-o", "yaml")

    assert said.out.splitlines()[0] == "lab/train asks for 9,000 MiB on one GPU (aliyun.com/gpu-mem)"
    assert "n1: GPU 0 of n1 has 4,276 MiB free, 9,000 MiB asked; held by lab/tenant" in said.out.splitlines()
    assert "n2: GPU 0 of n2 has 0 MiB free, 9,000 MiB asked; held by lab/other" in said.out.splitlines()
    assert [node["fits"] for node in yaml.safe_load(data.out)["nodes"]] == [False, False]


async def test_why_explain_and_inspect_name_a_cordoned_node() -> None:
    async with a_full_lab() as (lab, url):
        for node in ("n1", "n2"):
            await lab.client.patch(NODES, node, MergePatch({"spec": {"unschedulable": True}}))
        commands = (["why", "train", "-n", "lab"], ["explain", "train", "-n", "lab"], ["inspect", "n1", "-d"])
        why, explained, details = [(await carrel(*each, "--server", url)).out for each in commands]

    assert why.splitlines()[0] == "9,000 MiB on one GPU asked, but 2 nodes are cordoned: n1, n2"
    assert "n1: n1 is cordoned (kubectl uncordon n1)" in explained.splitlines()
    assert details.splitlines()[-1] == "n1 takes no new GPU pods: cordoned (kubectl uncordon n1)"


async def test_why_and_explain_of_a_pod_that_can_never_start_name_no_holders() -> None:
    words = (
        "No GPU has 200,000 MiB; the largest, of n1, has 16,276 MiB."
        " This pod will never start here: ask for 16,276 MiB or less."
    )
    async with a_full_lab() as (lab, url):
        await lab.pod("huge", limits={"aliyun.com/gpu-mem": "200000"})
        why = await carrel("why", "pod/huge", "-n", "lab", "--server", url, "-o", "yaml")
        explained = await carrel("explain", "pod/huge", "-n", "lab", "--server", url)

    answer = yaml.safe_load(why.out)
    assert (answer["why"], answer["held_by"]) == (words, [])
    assert explained.out == f"lab/huge asks for 200,000 MiB on one GPU (aliyun.com/gpu-mem). {words}\n"


async def test_inspect_prints_the_table_that_gpushares_plugin_prints() -> None:
    async with a_full_lab() as (_, url):
        said = await carrel("inspect", "--server", url)
        details = await carrel("inspect", "n1", "-d", "--server", url)
        data = await carrel("inspect", "-o", "json", "--server", url)

    assert said.out.splitlines() == [
        "NAME  IPADDRESS  GPU0(Allocated/Total)  GPU Memory(MiB)",
        "n1               12000/16276            12000/16276",
        "n2               16276/16276            16276/16276",
        "-" * len("NAME  IPADDRESS  GPU0(Allocated/Total)  GPU Memory(MiB)"),
        "Allocated/Total GPU Memory In Cluster:",
        "28276/32552 (86%)",
    ]
    assert details.out.splitlines() == [
        "NAME:       n1",
        "IPADDRESS:  ",
        "",
        "NAME    NAMESPACE  GPU0(Allocated)",
        "tenant  lab        12000",
        "Allocated :  12000 (73%)",
        "Total :      16276",
    ]
    assert json.loads(data.out)["nodes"][0]["devs"][0]["pods"] == [
        {"name": "tenant", "namespace": "lab", "usedGPU": 12000}
    ]


async def test_inspect_release_and_why_name_a_mig_slice_by_its_gpu_and_its_number() -> None:
    divided = Node(N1, divided_gpu(profiles=("1g.10gb", "3g.40gb")))
    async with a_lab([divided], in_real_time=True) as lab, serve(lab.api) as served:
        async with lab.replica() as replica:
            await replica.bind(await lab.pod("student", limits={"nvidia.com/mig-3g.40gb": "1"}), "n1")
        await lab.pod("late", limits={"nvidia.com/mig-3g.40gb": "1"})
        server = ("--server", served.url)
        said, details = await carrel("inspect", *server), await carrel("inspect", "-d", *server)
        why, gpus = await carrel("why", "pod/late", "-n", "lab", *server), await carrel("gpus", *server)
        plan = await carrel("release", "n1/0:1", "--dry-run", *server)

    assert said.out.splitlines()[1].split() == ["n1", "0:0=0/10240", "0:1=40960/40960", "40960/51200"]
    assert "NAME     NAMESPACE  GPU0:0(Allocated)  GPU0:1(Allocated)" in details.out.splitlines()
    assert why.out.startswith("n1 has no room for 1 MIG slice 3g.40gb: none of its 2 GPUs would do\n")
    assert "MIG slice 0:1 of n1 (NVIDIA-A100-SXM4-80GB-MIG-3g.40gb): lab/student" in why.out
    assert [line.split()[:2] for line in gpus.out.splitlines()[1:3]] == [["n1", "0:0"], ["n1", "0:1"]]
    assert "0:1" in plan.out + plan.err and "lab/student" in plan.out + plan.err


async def test_the_commands_write_nothing() -> None:
    async with a_full_lab() as (lab, url):
        before = await lab.held()
        for words in (("why", "-A"), ("inspect",), ("explain", "train", "-n", "lab")):
            assert (await carrel(*words, "--server", url)).code == 0
        assert await lab.held() == before


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("why", "pod/nobody", "-n", "lab"), 4, "✗ No pod lab/nobody"),
        (("explain", "train"), 4, "✗ No pod default/train"),
        (("why", "node/n1"), 2, "✗ 'node/n1' is not a pod"),
        (("inspect", "n9"), 4, "✗ No GPUs on n9"),
    ],
    ids=["no such pod", "a pod of another namespace", "not a pod", "no such node"],
)
async def test_an_error_has_three_lines_and_its_own_exit_code(words: tuple[str, ...], code: int, what: str) -> None:
    async with a_full_lab() as (_, url):
        said = await carrel(*words, "--server", url)

    lines = said.err.splitlines()
    assert (said.code, said.out, lines[0], len(lines)) == (code, "", what, 3)
    assert lines[2].startswith("  Try:  ")


async def test_a_server_that_does_not_answer_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    said = await carrel("inspect", "--server", url)

    assert said.code == 6
    assert said.err.splitlines() == [
        f"✗ No answer from {url}",
        f"  Nothing listens at {url}",
        f"  Try:  kubectl --server {url} cluster-info",
    ]


async def test_a_missing_kubeconfig_is_reported(tmp_path: Path) -> None:
    said = await carrel("inspect", "--kubeconfig", str(tmp_path / "nothing"))

    assert said.code == 2
    assert said.err.splitlines()[0] == "✗ No usable kubeconfig"


async def test_the_scheduler_config_names_the_extender_and_the_profile() -> None:
    said = await carrel("scheduler-config")

    config = yaml.safe_load(said.out)
    assert config["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    names = [each["schedulerName"] for each in config["profiles"]]
    assert names == ["gpu-scheduler", "hami-scheduler", "kai-scheduler"], "who names one without a GPU must not wait"
    alone = yaml.safe_load((await carrel("scheduler-config", "--no-peers")).out)
    assert alone["profiles"] == [{"schedulerName": "gpu-scheduler"}]
    assert config["extenders"] == [
        {
            "urlPrefix": "http://127.0.0.1:39999/carrel",
            "filterVerb": "filter",
            "prioritizeVerb": "prioritize",
            "bindVerb": "bind",
            "weight": 5,
            "nodeCacheCapable": True,
            "enableHTTPS": False,
            "httpTimeout": "135s",
            "ignorable": False,
        }
    ]


async def test_the_scheduler_config_for_pods_without_a_gpu_asks_for_scores_only_and_can_do_without() -> None:
    config = yaml.safe_load((await carrel("scheduler-config", "--cpu")).out)

    assert config["profiles"] == [{"schedulerName": "carrel-cpu"}]
    (extender,) = config["extenders"]
    assert extender["ignorable"] is True
    assert {verb for verb in extender if verb.endswith("Verb")} == {"prioritizeVerb"}


async def test_a_snapshot_names_nobody_and_can_be_simulated(tmp_path: Path) -> None:
    async with a_full_lab() as (lab, url):
        await lab.book("ada@lab.example", model=a_node("n1").gpus[0].model)
        said = await carrel("snapshot", "--server", url, XDG_CONFIG_HOME=str(tmp_path))
    saved = tmp_path / "lab.json"
    saved.write_text(said.out)

    assert said.err == NOT_LOGGED_IN
    assert [node["name"] for node in json.loads(said.out)["nodes"]] == ["node-1", "node-2"]
    assert sorted((pod.get("node", ""), pod.get("held", [])) for pod in json.loads(said.out)["pods"]) == [
        ("", []),
        ("node-1", [0]),
        ("node-2", [0]),
    ]
    assert not {word for word in ("ada", "tenant", "train", "other", "n1", "annotations", "env") if word in said.out}

    now = await carrel_process(
        "simulate", "--from", str(saved), "--add", "1xNVIDIA-RTX-A6000:16276", "--processes", "1"
    )
    head, before, after = (line.split("  ") for line in now.out.splitlines())
    told = [dict(zip(filter(None, head), filter(None, row), strict=True)) for row in (before, after)]
    assert [each["WAITING"].strip() for each in told] == ["1", "0"], "another GPU would help"


NOT_LOGGED_IN = "Past use is not in the snapshot: you are not logged in to the booking service (carrel login).\n"


async def test_a_snapshot_says_what_it_leaves_out(tmp_path: Path) -> None:
    async with a_full_lab() as (lab, url):
        await lab.pod("gated", limits={"nvidia.com/gpu": "1"}, gates=["a.example/b"])
        said = await carrel("snapshot", "--server", url, XDG_CONFIG_HOME=str(tmp_path))

    assert len(json.loads(said.out)["pods"]) == 3
    gated = "1 pod with scheduling gates: not in the snapshot, because no GPU is wanted yet.\n"
    assert said.err == gated + NOT_LOGGED_IN


@pytest.mark.parametrize(
    ("where", "code", "error"),
    [
        pytest.param(
            "> /dev/full",
            2,
            "✗ The output cannot be written\n  No space left on device\n  Try:  df -h\n",
            id="disk full",
        ),
        pytest.param("| true", 0, "", id="nobody reads"),
    ],
)
async def test_output_that_cannot_be_written_is_no_traceback(where: str, code: int, error: str) -> None:
    async with a_full_lab() as (_, url):
        command = f"{sys.executable} -m carrel snapshot --server {url} {where}; exit ${{PIPESTATUS[0]}}"
        shell = await asyncio.create_subprocess_exec("bash", "-c", command, stderr=asyncio.subprocess.PIPE)
        async with asyncio.timeout(LIMIT_S):
            _, said = await shell.communicate()

    assert (shell.returncode, said.decode()) == (code, error)


async def test_an_old_snapshot_is_refused_with_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "lab.json"
    old.write_text('{"form": "carrel-snapshot/1"}')

    said = await carrel_process("simulate", "--from", str(old))

    assert said.code == 2
    assert "lab.json: form is 'carrel-snapshot/1'" in said.err
    assert "take a new snapshot with `carrel snapshot`" in said.err


async def test_a_trace_that_cannot_be_read_is_refused_with_its_line(tmp_path: Path) -> None:
    trace, nodes = tmp_path / "trace.yaml", tmp_path / "nodes.yaml"
    trace.write_text("pods:\n- {name: a, gpus: many}\n")
    nodes.write_text("nodes: [{name: n1, gpus: [{model: A100, memoryMiB: 81920}]}]")

    said = await carrel_process("simulate", str(trace), "--nodes", str(nodes))

    assert said.code == 2
    assert "trace.yaml: line 2, gpus is 'many'" in said.err


async def test_adopt_shows_and_records_the_pods_that_another_scheduler_placed() -> None:
    async with a_lab([a_node("n1", gpus=2)], in_real_time=True) as lab, serve(lab.api) as served:
        told = {"ALIYUN_COM_GPU_MEM_IDX": "1"}
        old = await lab.pod("old", limits={"aliyun.com/gpu-mem": "2048"}, annotations=told)
        await lab.client.bind(BindTarget("lab", "old", old["metadata"]["uid"], "n1"))

        shown = await carrel("adopt", "--dry-run", "--server", served.url)
        assert [line.split() for line in shown.out.splitlines()] == [
            ["POD", "NODE", "GPU", "HOLDS", "RESULT"],
            ["lab/old", "n1", "1", "2,048", "MiB", "would", "be", "recorded"],
        ]
        assert await lab.held() == {}

        done = await carrel("adopt", "--server", served.url, "-o", "json")
        assert [(each["pod"], each["result"]) for each in json.loads(done.out)] == [("lab/old", "recorded")]
        assert await lab.held() == {"gpu-n1-1": {old["metadata"]["uid"]: 2048}}
        again = await carrel("adopt", "--server", served.url)
        assert again.out == "Every pod that has a GPU is on a Lease: nothing to record.\n"


@dataclass(frozen=True)
class GiBLab:
    """Extender and agent count in GiB. gpushare placed lab/old, of 2 GiB, on GPU 0, which has 15 GiB."""

    lab: Lab
    url: str
    uid: str

    async def agent_counts_in(self, unit: str | None) -> None:
        patch = MergePatch({"status": {"memoryUnit": unit}})
        await self.lab.client.patch(GPU_NODE_STATUSES, "n1", patch, subresource="status")

    async def carrel(self, *words: str) -> Result:
        return await carrel(*words, "--server", self.url)


IN_GIB = ClusterOptions(dialect_options=DialectOptions(Unit.GIB))


@asynccontextmanager
async def a_gib_lab() -> AsyncIterator[GiBLab]:
    async with a_lab([a_node("n1", gpus=1)], in_real_time=True) as lab, serve(lab.api) as served:
        told = {"ALIYUN_COM_GPU_MEM_IDX": "0"}
        old = await lab.pod("old", limits={"aliyun.com/gpu-mem": "2"}, annotations=told)
        await lab.client.bind(BindTarget("lab", "old", old["metadata"]["uid"], "n1"))
        await lab.report_rules(IN_GIB)
        found = GiBLab(lab, served.url, old["metadata"]["uid"])
        await found.agent_counts_in("GiB")
        yield found


async def test_commands_count_in_the_unit_of_the_cluster_and_nothing_is_promised_twice() -> None:
    async with a_gib_lab() as gib:
        too_much = await gib.lab.pod("too-much", limits={"aliyun.com/gpu-mem": "14"})
        fits = await gib.lab.pod("fits", limits={"aliyun.com/gpu-mem": "13"})
        why = await gib.carrel("why", "too-much", "-n", "lab")
        assert why.out.startswith("GPU 0 of n1 has 14,228 MiB free, 14,336 MiB asked; held by lab/old"), why
        assert "there is room" in (await gib.carrel("why", "fits", "-n", "lab")).out
        assert "2/15 (13%)" in (await gib.carrel("inspect")).out.splitlines()

        done = await gib.carrel("adopt")
        assert ["lab/old", "n1", "0", "2,048", "MiB", "recorded"] in [line.split() for line in done.out.splitlines()]
        assert await gib.lab.held() == {"gpu-n1-0": {gib.uid: 2048}}
        async with gib.lab.replica(dialect_options=IN_GIB.dialect_options) as replica:
            assert isinstance(await replica.bind(too_much, "n1"), Refusal)
            assert await replica.bind(fits, "n1") is None
        assert sum(await gpu_memory(gib.lab)) <= 16276


async def gpu_memory(lab: Lab) -> list[int]:
    """What the Leases give of the only GPU."""
    (shares,) = (await lab.held()).values()
    return [mib for mib in shares.values() if mib is not None]


@pytest.mark.parametrize("words", [("adopt",), ("inspect",), ("snapshot",)], ids=lambda words: words[0])
async def test_amounts_are_not_shown_or_recorded_where_agents_and_scheduler_differ(words: tuple[str, ...]) -> None:
    async with a_gib_lab() as gib:
        await gib.agent_counts_in("MiB")
        said = await gib.carrel(*words)
        assert (said.code, said.out) == (3, "")
        assert said.err.splitlines()[0] == "✗ Agents and scheduler differ"
        assert "n1: its agent counts memory in MiB, the scheduler in GiB" in said.err
        assert await gib.lab.held() == {}


async def test_why_has_the_scheduler_s_own_reason_where_an_agent_counts_in_another_unit() -> None:
    async with a_gib_lab() as gib:
        await gib.lab.pod("train", limits={"aliyun.com/gpu-mem": "1"})
        await gib.agent_counts_in("MiB")
        assert (
            "its agent counts memory in MiB, the scheduler in GiB"
            in (await gib.carrel("why", "train", "-n", "lab")).out
        )


@pytest.mark.parametrize(
    "words",
    [("why", "-A"), ("explain", "old", "-n", "lab"), ("inspect",), ("adopt",), ("snapshot",), ("release", "n1")],
    ids=lambda words: words[0],
)
async def test_no_command_guesses_settings_that_no_scheduler_has_reported(words: tuple[str, ...]) -> None:
    async with a_gib_lab() as gib:
        await gib.lab.client.delete(LEASES, "carrel-extender", "carrel")
        said = await gib.carrel(*words)
        assert (said.code, said.out, said.err.splitlines()[0]) == (3, "", "✗ The scheduler's settings are not known")
        assert "The namespace carrel has no Lease carrel-extender" in said.err

        broken = MergePatch({"metadata": {"annotations": {"carrel.dev/rules": '{"memoryUnit": "MB"}'}}})
        await gib.lab.report_rules()
        await gib.lab.client.patch(LEASES, "carrel-extender", broken, "carrel")
        said = await gib.carrel(*words)
        assert (said.code, said.err.splitlines()[0]) == (3, "✗ The scheduler's settings cannot be read")


async def test_why_says_that_the_scheduler_wants_a_seal_or_does_not_serve_the_pod() -> None:
    """Whether a seal is genuine, this command cannot see: then the scheduler's last words count."""
    async with a_lab([a_node("n1", gpus=1)], in_real_time=True) as lab, serve(lab.api) as served:
        await lab.report_rules(ClusterOptions(seal=Seal((b"secret",))))
        whole = {"nvidia.com/gpu": "1"}
        await lab.pod("bare", limits=whole)
        await lab.pod("forged", limits=whole, annotations={"carrel.dev/admitted": "2026-11-16T12:00:00Z 3f1c 5f70"})
        await lab.pod("foreign", limits=whole, scheduler="other", annotations={"carrel.dev/admitted": "…"})
        tried = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: it was not admitted"}
        await lab.client.patch(
            PODS, "forged", MergePatch({"status": {"conditions": [tried]}}), "lab", subresource="status"
        )
        said = {
            name: (await carrel("why", name, "-n", "lab", "--server", served.url)).out.splitlines()[0]
            for name in ("bare", "forged", "foreign")
        }

    assert said == {
        "bare": "pod lab/bare gets no GPU: it was not admitted by Carrel's webhook, or what that wrote was changed;"
        " delete the pod and create it again",
        "forged": "there is room for lab/forged: gpu-scheduler can place it now;"
        " when it last tried, it said: 0/1 nodes: it was not admitted",
        "foreign": "lab/foreign is for the scheduler 'other', and Carrel places only pods of others:"
        " delete it and create it again",
    }


async def test_release_frees_the_gpus_of_a_node_that_is_away_and_of_no_other() -> None:
    async with a_full_lab() as (lab, url):
        refused = await carrel("release", "n1", "--yes", "--server", url)
        assert (refused.code, refused.err.splitlines()[0]) == (3, "✗ n1 is not away")
        assert refused.out.splitlines()[1].split() == ["n1", "0", "lab/tenant", "running"]

        await lab.client.patch(NODES, "n1", AWAY, subresource="status")
        asks = await carrel("release", "n1/0", "--server", url)
        assert (asks.code, asks.err.splitlines()[0]) == (2, "✗ Not released"), "nobody is there to confirm it"
        assert "n1 does not answer: its kubelet is not ready since 2026-11-16T11:00:00Z." in asks.out
        shown = await carrel("release", "n1/0", "--dry-run", "--server", url)
        assert shown.code == 0
        assert sorted(await lab.held()) == ["gpu-n1-0", "gpu-n2-0"]

        done = await carrel("release", "n1/0", "--yes", "--server", url)
        assert done.out.splitlines()[-1] == "Released 1 share of GPUs on n1."
        assert sorted(await lab.held()) == ["gpu-n2-0"]
        again = await carrel("release", "n1/0", "--yes", "--server", url)
        assert (again.code, again.err.splitlines()[0]) == (4, "✗ Nothing to release on n1/0")


@asynccontextmanager
async def asked_for_confirmation(*arguments: str) -> AsyncIterator[Callable[[str], Awaitable[Result]]]:
    """The command on a terminal, when it has asked its question. Give the answer to go on."""
    ours, terminal = os.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "carrel", *arguments),
        stdin=terminal,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": ""},
    )
    assert process.stderr is not None

    async def answer(text: str) -> Result:
        os.write(ours, f"{text}\n".encode())
        async with asyncio.timeout(LIMIT_S):
            out, err = await process.communicate()
        return Result(process.returncode or 0, out.decode(), err.decode())

    try:
        async with asyncio.timeout(LIMIT_S):
            await process.stderr.readuntil(b"[y/N]")
        yield answer
    finally:
        os.close(ours)
        os.close(terminal)


@pytest.mark.parametrize("meanwhile", ["the node answers again", "another pod holds the GPU"])
async def test_release_looks_again_after_the_confirmation(meanwhile: str) -> None:
    async with a_full_lab() as (lab, url):
        await lab.client.patch(NODES, "n1", AWAY, subresource="status")
        async with asked_for_confirmation("release", "n1", "--server", url) as answer:
            if meanwhile == "the node answers again":
                back = MergePatch({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
                await lab.client.patch(NODES, "n1", back, subresource="status")
            else:
                async with lab.replica() as replica:
                    uid = (await lab.client.get(PODS, "tenant", "lab"))["metadata"]["uid"]
                    await lab.client.delete(PODS, "tenant", "lab", how=DeleteOptions(grace_seconds=0))
                    await eventually(lambda: replica.pods.store.by_uid(uid) is None)
                    await replica.lease_writer.remove_pod(N1, 0, uid)
                    assert await replica.bind(await lab.client.get(PODS, "train", "lab"), "n1") is None
            said = await answer("y")

        assert sorted(await lab.held()) == ["gpu-n1-0", "gpu-n2-0"]
        if meanwhile == "the node answers again":
            assert (said.code, "✗ n1 is not away" in said.err) == (3, True)
        else:
            assert "Released 0 shares of GPUs on n1." in said.out


async def test_why_names_the_node_that_is_silent_and_the_pods_that_may_run_there() -> None:
    async with a_full_lab() as (lab, url):
        silent = MergePatch({"status": {"heartbeat": "2026-01-01T00:00:00Z", "orphans": []}})
        await lab.client.patch(GPU_NODE_STATUSES, "n1", silent, subresource="status")
        said = await carrel("why", "pod/train", "-n", "lab", "--server", url)

    since = "n1 does not answer, the agent's last heartbeat was at Thu 01 Jan 2026 00:00 UTC"
    (line,) = [line for line in said.out.splitlines() if "lab/tenant" in line]
    assert line.endswith(f"lab/tenant, may still run: {since}")


@pytest.mark.parametrize("gpu", ["", "n1/", "n1/first", "/0"])
async def test_release_needs_a_node_or_a_gpu(gpu: str) -> None:
    said = await carrel("release", gpu, "--server", "http://127.0.0.1:1")

    assert (said.code, said.err.splitlines()[0]) == (2, f"✗ {gpu!r} is not a GPU")


async def test_purge_shows_what_is_left_asks_and_deletes_it() -> None:
    async with a_full_lab() as (lab, url):
        asks = await carrel("purge", "--server", url)
        assert (asks.code, asks.err.splitlines()[0]) == (2, "✗ Nothing is deleted"), "nobody is there to confirm it"
        rows = [line.split()[:3] for line in asks.out.splitlines()]
        assert rows[:2] == [["KIND", "NAMESPACE", "NAME"], ["Node", "–", "n1,"]]
        assert ["Lease", "carrel", "gpu-n1-0,"] in rows and ["Lease", "carrel", "carrel-extender"] in rows
        assert asks.out.splitlines()[-1].endswith("kubectl delete crd gpunodestatuses.gpu.scheduling")
        assert sorted(await lab.held()) == ["gpu-n1-0", "gpu-n2-0"]

        for node in ("n1", "n2"):  # as after `carrel withdraw`: else it waits whether agents write again
            await lab.client.delete(GPU_NODE_STATUSES, node)
        done = await carrel("purge", "--server", url, "--yes", "-o", "json")
        assert done.code == 0, done.err
        assert {each["kind"] for each in json.loads(done.out)} == {"CustomResourceDefinition", "Lease"}
        assert await lab.held() == {}
        again = await carrel("purge", "--server", url, "--yes")
        assert again.out.splitlines()[0] == "Nothing of Carrel is left."
