"""In which form an answer is written: the first that both sides know, in the order of the caller's preference."""

import pytest

from kubernetes_in_memory.representations import Representation, representation_of

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        pytest.param("", Representation.WHOLE, id="nothing is said"),
        pytest.param("*/*", Representation.WHOLE, id="anything: curl"),
        pytest.param("application/*", Representation.WHOLE, id="any application type"),
        pytest.param("application/json, */*", Representation.WHOLE, id="JSON, else anything"),
        pytest.param("application/json;stream=watch", Representation.WHOLE, id="JSON as a stream"),
        pytest.param(
            f"{TABLE},{TABLE.replace('v1', 'v1beta1')},application/json", Representation.TABLE, id="kubectl get"
        ),
        pytest.param(f"application/json,{TABLE}", Representation.WHOLE, id="the first counts"),
        pytest.param(f"application/json;q=0.5,{TABLE}", Representation.TABLE, id="unless it is liked less"),
        pytest.param(
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,"
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
            Representation.METADATA,
            id="client-go's metadata client",
        ),
        pytest.param("application/vnd.kubernetes.protobuf, */*", Representation.WHOLE, id="kube-scheduler"),
        pytest.param("application/cbor,application/json", Representation.WHOLE, id="CBOR or JSON"),
        pytest.param("application/vnd.kubernetes.protobuf", None, id="nothing but protobuf"),
        pytest.param("text/html", None, id="a browser's page"),
        pytest.param("application/json;as=Picture;g=meta.k8s.io;v=v1", None, id="a form that nobody knows"),
        pytest.param("application/json;as=Table;g=other.example;v=v1", None, id="a table of another group"),
        pytest.param("application/json;as=Table;g=meta.k8s.io;v=v9", None, id="a table of a version to come"),
        pytest.param("application/json;q=much", Representation.WHOLE, id="a preference that is no number"),
    ],
)
def test_the_first_form_that_both_know(accept: str, form: Representation | None) -> None:
    assert representation_of(accept) is form
