"""What probes and Prometheus ask for. They carry no credential, and are answered when nobody else is."""

PROBES = ("/healthz", "/readyz", "/metrics")
_PROBE_BYTES = frozenset(path.encode() for path in PROBES)


def is_probe(method: bytes, path: bytes) -> bool:
    return method == b"GET" and path in _PROBE_BYTES
