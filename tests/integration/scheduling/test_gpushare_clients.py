"""What gpushare's own clients see: its prefix, its sentences, its exact JSON."""

from tests.integration.scheduling.served_extender import a_served_extender
from tests.kit.gpus import a_node


async def test_gpushares_sentence_comes_before_carrels_reason() -> None:
    async with a_served_extender([a_node("n1", gpus=1)]) as extender:
        first = await extender.lab.pod("first", limits={"aliyun.com/gpu-mem": "10000"})
        assert await extender.caller.bind(first, "n1", "gpushare-scheduler") == ""
        pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})

        found = await extender.caller.filter(pod, ["n1", "cpu-only"], "gpushare-scheduler")

    assert found == {
        "Nodes": None,
        "NodeNames": [],
        "FailedNodes": {
            "n1": "Insufficient GPU Memory in one device: room on 0 of 1 GPUs",
            "cpu-only": "The node cpu-only is not for GPU share, need skip: no GPU that Carrel knows of",
        },
        "Error": "",
    }


async def test_a_pod_of_another_dialect_gets_carrels_reason_alone() -> None:
    async with a_served_extender([a_node("n1", gpus=2)]) as extender:
        first = await extender.lab.pod("first", limits={"aliyun.com/gpu-mem": "10000"})
        assert await extender.caller.bind(first, "n1", "gpushare-scheduler") == ""
        pod = await extender.lab.pod("train", limits={"nvidia.com/gpu": "2"})

        found = await extender.caller.filter(pod, ["n1"], "gpushare-scheduler")

    assert found["FailedNodes"] == {"n1": "room on 1 of 2 GPUs"}


async def test_inspect_answers_exactly_what_the_kubectl_plugin_reads() -> None:
    async with a_served_extender([a_node("n1", gpus=2), a_node("n2", gpus=1)]) as extender:
        pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})
        assert await extender.caller.bind(pod, "n1", "gpushare-scheduler") == ""

        everything = await extender.caller.get("/gpushare-scheduler/inspect")
        one = await extender.caller.get("/gpushare-scheduler/inspect/n2")
        unknown = await extender.caller.get("/gpushare-scheduler/inspect/n9")

    n1 = (
        '{"name":"n1","totalGPU":32552,"usedGPU":8138,"devs":['
        '{"id":0,"totalGPU":16276,"usedGPU":8138,"pods":[{"name":"train","namespace":"lab","usedGPU":8138}]},'
        '{"id":1,"totalGPU":16276,"usedGPU":0,"pods":[]}]}'
    )
    n2 = '{"name":"n2","totalGPU":16276,"usedGPU":0,"devs":[{"id":0,"totalGPU":16276,"usedGPU":0,"pods":[]}]}'
    assert everything.text == f'{{"nodes":[{n1},{n2}]}}'
    assert one.text == f'{{"nodes":[{n2}]}}'
    assert (unknown.status, unknown.text) == (404, '{"nodes":[],"error":"n9 has no GPU that Carrel knows of"}')


async def test_a_bind_is_answered_exactly_as_by_gpushare_but_a_refusal_has_status_200() -> None:
    async with a_served_extender([a_node("n1", gpus=1)]) as extender:
        pod = await extender.lab.pod("train", limits={"aliyun.com/gpu-mem": "8138"})
        names = {"PodName": "train", "PodNamespace": "lab", "PodUID": pod["metadata"]["uid"]}

        refused = await extender.caller.post("/gpushare-scheduler/bind", {**names, "Node": "n9"})
        bound = await extender.caller.post("/gpushare-scheduler/bind", {**names, "Node": "n1"})

    assert (refused.status, refused.text) == (200, '{"Error":"pod lab/train may not run on n9, which does not exist"}')
    assert (bound.status, bound.text) == (200, '{"Error":""}')


async def test_version_is_plain_text() -> None:
    async with a_served_extender([a_node("n1")]) as extender:
        answer = await extender.caller.get("/version")

    assert (answer.status, answer.text) == (200, "0.1.0")
