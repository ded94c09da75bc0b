"""The real kube-scheduler with gpushare's own configuration: Carrel's extender answers at gpushare's addresses."""

from pathlib import Path

import yaml

from tests.e2e.carrel_cluster import a_node
from tests.e2e.embedded_cluster import EmbeddedCluster, Json, embedded_cluster
from tests.e2e.pods import eventually
from tests.e2e.test_scheduler_on_the_embedded_api import a_pod, placed

CONFIGURATION = Path(__file__).parents[2] / "examples" / "gpushare-scheduler-config.yaml"


def as_gpushare_says(url: str, kubeconfig: str) -> Json:
    config: Json = yaml.safe_load(CONFIGURATION.read_text())
    (extender,) = config["extenders"]
    extender["urlPrefix"] = extender["urlPrefix"].replace("http://127.0.0.1:39999", url)
    return {**config, "clientConnection": {"kubeconfig": kubeconfig}}


def test_pods_share_gpus_by_memory_and_no_gpu_is_given_twice() -> None:
    with embedded_cluster([a_node("n1", [16276] * 2)], as_gpushare_says) as cluster:
        first = placed(cluster, a_pod("first", {"aliyun.com/gpu-mem": "12207"}))
        second = placed(cluster, a_pod("second", {"aliyun.com/gpu-mem": "12207"}))
        told = [each["metadata"]["annotations"] for each in (first, second)]
        assert {each["ALIYUN_COM_GPU_MEM_IDX"] for each in told} == {"0", "1"}
        assert all(each["ALIYUN_GPU_ID"] == each["ALIYUN_COM_GPU_MEM_IDX"] for each in told)

        # 8,138 MiB are free, and not on one GPU.
        cluster.kubectl("apply", "-f", "-", given=a_pod("third", {"aliyun.com/gpu-mem": "8138"}))
        eventually(lambda: could_not_be_placed(cluster, "third"), limit_s=120)


def could_not_be_placed(cluster: EmbeddedCluster, name: str) -> bool:
    conditions = cluster.get("pod", name)["status"].get("conditions", ())
    return any(
        each["type"] == "PodScheduled" and "Insufficient GPU Memory in one device" in each.get("message", "")
        for each in conditions
    )
