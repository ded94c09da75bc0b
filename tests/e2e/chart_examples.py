"""The files of `examples/` on a cluster that has not the images that they name."""

from pathlib import Path

import yaml

from tests.e2e.pods import Json

EXAMPLES = Path(__file__).parents[2] / "examples"
FOR_COMMANDS = {"cluster.yaml", "gpushare-scheduler-config.yaml", "kai-old-names.yaml", "node-gpus.yaml"}
REFUSED = {
    "refused-two-dialects.yaml": "in 2 ways",
    "for-a-booking.yaml": "has no booking that starts later",
}
WAITS = "waits-too-large.yaml"
WITHOUT_SLICES = {WAITS, "mig-slice.yaml"}
"""The GPUs of the test bed are not divided."""
RUNNING = sorted({file.name for file in EXAMPLES.glob("*.yaml")} - FOR_COMMANDS - REFUSED.keys() - WITHOUT_SLICES)
PATHS = {
    "Pod": "/api/v1/namespaces/{}/pods",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "GpuClaim": "/apis/gpu.scheduling/v1/namespaces/{}/gpuclaims",
}


def documents(file: str) -> list[Json]:
    return [_with_our_image(each) for each in yaml.safe_load_all((EXAMPLES / file).read_text())]


def in_docs(page: str) -> list[Json]:
    """The manifests in the first example of a page of the documentation."""
    text = (EXAMPLES.parent / "docs" / page).read_text()
    return list(yaml.safe_load_all(text.partition("```yaml\n")[2].partition("```")[0]))


def path(document: Json, namespace: str) -> str:
    return PATHS[document["kind"]].format(namespace)


def pods_made() -> int:
    """By the files that run."""
    made = [each for file in RUNNING for each in documents(file)]
    of_jobs = sum(int(each["spec"].get("parallelism", 1)) for each in made if each["kind"] == "Job")
    return of_jobs + len([each for each in made if each["kind"] == "Pod"])


def _with_our_image(document: Json) -> Json:
    if document["kind"] != "GpuClaim":
        spec = document["spec"]["template"]["spec"] if document["kind"] == "Job" else document["spec"]
        spec["terminationGracePeriodSeconds"] = 1
        for container in spec["containers"]:
            container |= {"image": "testbed/busybox:1", "imagePullPolicy": "Never", "command": ["sleep", "3600"]}
    return document
