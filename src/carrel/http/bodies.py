"""Reads the body of a request, up to a limit."""

from carrel.http.serving import Receive


async def read_body(receive: Receive, limit: int) -> bytes | None:
    """None if the body has more than `limit` bytes.

    The rest of such a body is read and dropped: if the connection were closed before, the sender could not read the
    answer.
    """
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size <= limit:
            chunks.append(chunk)
        if not message.get("more_body"):
            break
    return b"".join(chunks) if size <= limit else None
