"""What one caller of a server may take: of its time, of its memory, of its connections."""

import resource
from dataclasses import dataclass, replace

KEEP_ALIVE_S = 120
"""Longer than Go's clients keep an idle connection (90 s): they must close it first, because a POST on a connection
that the server closes is not sent again."""
KEPT_FOR_OTHERS = 64
"""Files of the process that are not connections to its server: its own connections, its log, its database."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    connections: int = 512
    """Open at once. If there are more, the caller with the most connections that wait for something loses one."""
    header_bytes: int = 64 * 1024
    """Address and header of a request. kube-apiserver and browsers send less than 10 kB."""
    headers: int = 100
    """Go's servers and browsers need fewer than 30."""
    header_s: float = 10.0
    """From the first byte of a request to the end of its header: it is sent in one piece."""
    body_s: float = 30.0
    """From the end of the header to the end of the body. No webhook call of kube-apiserver may take longer."""
    handshake_s: float = 10.0
    stalled_s: float = 60.0
    """How long a caller may read nothing of an answer that is waiting for it."""

    def within_open_files(self) -> "ServerLimits":
        """Never so many connections that the process cannot open its own files."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return self
        return replace(self, connections=min(self.connections, max(1, soft - KEPT_FOR_OTHERS)))


DEFAULT_LIMITS = ServerLimits()
