"""What a command says when the API server refuses or does not answer."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from carrel.command_errors import FORBIDDEN, UNAVAILABLE, command_failed
from carrel.settings import ContextSettings


@contextmanager
def cluster_errors(
    settings: ContextSettings, denied: tuple[str, str], failed: tuple[str, str], is_allowed: bool = True
) -> Iterator[None]:
    """A `ClusterError` ends the command. `denied` and `failed` are each what is said then, and what helps.

    Without `is_allowed`, `Forbidden` passes."""
    from carrel.kubernetes.cluster import ClusterError, Forbidden

    try:
        yield
    except Forbidden as error:
        if not is_allowed:
            raise
        raise command_failed(denied[0], error.message, denied[1], FORBIDDEN) from None
    except ClusterError as error:
        what, why, advice = failed[0], str(error), failed[1]
        cause = error.__cause__
        if error.reason == "NoConnection" and isinstance(cause, OSError):
            server = settings.access().server
            what, advice = f"No answer from {server}", same_question(settings)
            is_closed = cause.errno == errno.ECONNREFUSED
            why = f"Nothing listens at {server}" if is_closed else f"No connection: {cause.strerror or error}"
        raise command_failed(what, why, advice, UNAVAILABLE) from None


def same_question(settings: ContextSettings) -> str:
    """A command of kubectl that asks the same API server."""
    given = {"--server": settings.server, "--kubeconfig": settings.kubeconfig, "--context": settings.context}
    options = [f"{option} {value}" for option, value in given.items() if value]
    return " ".join(["kubectl", *options, "cluster-info"])
