"""In which form an answer is written: the first that both sides know, in the order of the caller's preference."""

import pytest

from kubernetes_in_memory.forms import Form, form_of

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        pytest.param("", Form.WHOLE, id="nothing is said"),
        pytest.param("*/*", Form.WHOLE, id="anything: curl"),
        pytest.param("application/*", Form.WHOLE, id="any application type"),
        pytest.param("application/json, */*", Form.WHOLE, id="JSON, else anything"),
        pytest.param("application/json;stream=watch", Form.WHOLE, id="JSON as a stream"),
        pytest.param(f"{TABLE},{TABLE.replace('v1', 'v1beta1')},application/json", Form.TABLE, id="kubectl get"),
        pytest.param(f"application/json,{TABLE}", Form.WHOLE, id="the first counts"),
        pytest.param(f"application/json;q=0.5,{TABLE}", Form.TABLE, id="unless it is liked less"),
        pytest.param(
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,"
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
            Form.METADATA,
            id="client-go's metadata client",
        ),
        pytest.param("application/vnd.kubernetes.protobuf, */*", Form.WHOLE, id="kube-scheduler"),
        pytest.param("application/cbor,application/json", Form.WHOLE, id="CBOR or JSON"),
        pytest.param("application/vnd.kubernetes.protobuf", None, id="nothing but protobuf"),
        pytest.param("text/html", None, id="a browser's page"),
        pytest.param("application/json;as=Picture;g=meta.k8s.io;v=v1", None, id="a form that nobody knows"),
        pytest.param("application/json;as=Table;g=other.example;v=v1", None, id="a table of another group"),
        pytest.param("application/json;as=Table;g=meta.k8s.io;v=v9", None, id="a table of a version to come"),
        pytest.param("application/json;q=much", Form.WHOLE, id="a preference that is no number"),
    ],
)
def test_the_first_form_that_both_know(accept: str, form: Form | None) -> None:
    assert form_of(accept) is form
