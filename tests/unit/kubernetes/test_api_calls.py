"""Calls to the API server are counted by verb, resource and answer, never by the name of an object."""

import pytest

from carrel.http.metrics import ComponentMetrics
from carrel.kubernetes.api_calls import ApiCalls, resource_in
from carrel.kubernetes.transport import ApiRequest, ApiResponse


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/version", "other"),
        ("/api/v1/pods", "pods"),
        ("/api/v1/namespaces/lab", "namespaces"),
        ("/api/v1/namespaces/lab/pods/train", "pods"),
        ("/api/v1/namespaces/lab/pods/train/binding", "pods/binding"),
        ("/apis/coordination.k8s.io/v1/namespaces/carrel/leases/gpu-n1-0", "leases"),
        ("/apis/gpu.scheduling/v1/gpunodestatuses/n1/status", "gpunodestatuses/status"),
    ],
)
def test_the_resource_is_read_from_the_path(path: str, resource: str) -> None:
    assert resource_in(path) == resource


def test_prometheus_sees_calls_conflicts_and_durations() -> None:
    calls, metrics = ApiCalls(), ComponentMetrics()
    metrics.show_api_calls(calls)
    lease = "/apis/coordination.k8s.io/v1/namespaces/carrel/leases/gpu-n1-0"
    calls.add(ApiRequest("PUT", lease), ApiResponse(200), 0.005)
    calls.add(ApiRequest("PUT", lease), ApiResponse(409), 0.3)
    calls.add(ApiRequest("PUT", lease), ApiResponse(409), 99.0)
    calls.add(ApiRequest("GET", "/api/v1/pods", {"watch": "true"}), None, 0.001)
    text = metrics.text().decode()
    for line in (
        'carrel_api_requests_total{code="409",resource="leases",verb="PUT"} 2.0',
        'carrel_api_requests_total{code="none",resource="pods",verb="WATCH"} 1.0',
        'carrel_api_request_duration_seconds_bucket{le="0.005",verb="PUT"} 1.0',
        'carrel_api_request_duration_seconds_bucket{le="0.5",verb="PUT"} 2.0',
        'carrel_api_request_duration_seconds_bucket{le="+Inf",verb="PUT"} 3.0',
        'carrel_api_request_duration_seconds_count{verb="PUT"} 3.0',
    ):
        assert line in text
    assert "gpu-n1-0" not in text
