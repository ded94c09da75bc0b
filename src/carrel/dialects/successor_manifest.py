"""The manifest of a successor, from before its pod is ended until it exists: a Secret in Carrel's own namespace.

A pod's environment may hold tokens and passwords. So the manifest is not in the record of the hand-over, which webhook
and booking service read, but in a Secret of its own, which only the controller reads. The record names it, and owns it:
Kubernetes deletes it with the record.

    type   carrel.dev/handover
    name   handover-<uid of the record>-<version of the pod>     so what it holds never changes
    data   successor      JSON, compressed
"""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from carrel.kubernetes.objects.resources import CONFIG_MAPS, SECRETS
from carrel.parsing.fields import Field
from carrel.parsing.malformed import Malformed

TYPE = "carrel.dev/handover"
MOST_BYTES = 1_000_000
"""Of the compressed manifest. Kubernetes takes a Secret of 1 MiB."""
_MOST_UNPACKED = 16 * 1024 * 1024
"""Far more than any pod has; what is unpacked has to be bounded."""
_KEY = "successor"


def manifest_name(record: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """Of the Secret for this version of the pod."""
    return f"handover-{record['metadata']['uid']}-{pod['metadata']['resourceVersion']}"


def pack(manifest: Mapping[str, Any]) -> bytes:
    return zlib.compress(json.dumps(manifest, separators=(",", ":")).encode())


def write_manifest(name: str, packed: bytes, record: Mapping[str, Any]) -> dict[str, Any]:
    """The whole Secret. `record`: the ConfigMap as the API server has it."""
    metadata = record["metadata"]
    owner = {"apiVersion": CONFIG_MAPS.api_version, "kind": CONFIG_MAPS.kind}
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "type": TYPE,
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "ownerReferences": [{**owner, "name": metadata["name"], "uid": metadata["uid"]}],
        },
        "data": {_KEY: b64encode(packed).decode()},
    }


def read_manifest(secret: Mapping[str, Any]) -> dict[str, Any]:
    """Raises `Malformed`."""
    where = f"Secret {secret['metadata']['name']}"
    text = Field(secret, where)["data"][_KEY].some_text()
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(b64decode(text, validate=True), _MOST_UNPACKED).decode()
    except (ValueError, zlib.error):
        raise Malformed(where, f"data.{_KEY}", f"{len(text)} characters", "a compressed manifest") from None
    if not unpacking.eof:
        raise Malformed(where, f"data.{_KEY}", f"{len(text)} characters", "a complete compressed manifest")
    return dict(Field.parse(content, where, f"data.{_KEY}").object())
