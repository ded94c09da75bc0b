"""Where a command line keeps the service's address and its token: a file that only its owner may read."""

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Login:
    server: str
    token: str = field(default="", repr=False)
    token_id: str = ""
    email: str = ""


def path() -> Path:
    """As the XDG Base Directory Specification says."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "carrel" / "login.json"


def read() -> Login | None:
    try:
        found = json.loads(path().read_text())
        return Login(*(str(found[name]) for name in ("server", "token", "token_id", "email")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(login: Login) -> Path:
    """Whole or not at all; never readable by others, not even for a moment."""
    file = path()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = {"server": login.server, "token": login.token, "token_id": login.token_id, "email": login.email}
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".login-")  # made with mode 0600
    with os.fdopen(handle, "w") as opened:
        json.dump(content, opened, indent=2)
    Path(name).replace(file)
    return file


def forget() -> None:
    path().unlink(missing_ok=True)


def is_private(server: str) -> bool:
    """Whether a token may be sent there: over TLS, or to this machine."""
    parts = urlsplit(server)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1"))
