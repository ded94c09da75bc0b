"""The login of the command line: a file that only its owner may read, and what options say instead of it."""

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from carrel.cli.options import BookingServiceSettings
from carrel.command_errors import USAGE, command_failed


@dataclass(frozen=True, slots=True)
class Login:
    server: str
    token: str = field(default="", repr=False)
    token_id: str = ""
    email: str = ""


def login_of(settings: BookingServiceSettings) -> Login:
    """From the options, the environment or the saved login. Without one, the command ends with the reason."""
    login = known_login(settings)
    if not login.server:
        why = "There is no --server, no CARREL_URL and no saved login."
        raise command_failed("No booking service is known", why, "carrel login https://gpus.lab.org", USAGE)
    check_address(login.server, settings.insecure)
    if not login.token:
        hint = f"carrel login {login.server}"
        raise command_failed(f"Not logged in to {login.server}", "There is no token for it.", hint, USAGE)
    return login


def known_login(settings: BookingServiceSettings) -> Login:
    """What is known of it. A token that was given or saved for this service wins over that of the notebook."""
    saved = read()
    server = settings.server.rstrip("/") or (saved.server if saved else "")
    token = settings.token or (saved.token if saved and saved.server == server else "")
    return Login(server, token or settings.hub_token)


def check_address(server: str, insecure: bool) -> None:
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        why = f"{server!r} is not the URL of a service."
        raise command_failed("Which booking service?", why, "carrel login https://gpus.lab.org", USAGE)
    if not insecure and not is_private(server):
        why = "Without TLS, others on the network could read your token and book in your name."
        raise command_failed(
            f"{server} is not safe", why, "use https, or add --insecure if you trust the network", USAGE
        )


def is_private(server: str) -> bool:
    """Whether a token may be sent there: over TLS, or to this machine."""
    parts = urlsplit(server)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1"))


def path() -> Path:
    """As in the XDG Base Directory Specification."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "carrel" / "login.json"


def read() -> Login | None:
    try:
        found = json.loads(path().read_text())
        return Login(*(str(found[name]) for name in ("server", "token", "token_id", "email")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(login: Login) -> Path:
    """Atomic, and never readable by others, not even for a moment."""
    file = path()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = {"server": login.server, "token": login.token, "token_id": login.token_id, "email": login.email}
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".login-")  # created with mode 0600
    with os.fdopen(handle, "w") as opened:
        json.dump(content, opened, indent=2)
    Path(name).replace(file)
    return file


def delete() -> None:
    path().unlink(missing_ok=True)
