"""The secrets that an admin of Carrel chooses: which of them cannot be used.

Secrets that others choose, such as that of an OpenID Connect client, are taken as they are.
"""

from collections.abc import Iterator

SHORTEST_SECRET = 16
"""Characters. Whoever can call as often as they like finds a shorter one by trying."""
HOW_TO_MAKE_ONE = "openssl rand -hex 32 makes one"
NO_SEAL = "none"
"""Instead of a seal key: the admin says that pods are not sealed."""
CHOSEN_HERE = ("seal_key", "maia_token", "terminator_token", "webhook_secret", "hub_client_secret")
"""Fields of settings. A seal key may be followed by older ones, after commas."""


def why_weak(variable: str, secret: str) -> str:
    """Empty if the secret is long enough. The secret itself is not said."""
    if len(secret) >= SHORTEST_SECRET:
        return ""
    return f"{variable} has {len(secret)} characters; at least {SHORTEST_SECRET} are needed: {HOW_TO_MAKE_ONE}"


def mistakes_in_secrets(settings: object) -> Iterator[str]:
    """What is wrong with the secrets in the settings of a component."""
    for name in CHOSEN_HERE:
        given = str(getattr(settings, name, ""))
        parts = [part.strip() for part in given.split(",")] if name == "seal_key" else [given]
        for secret in filter(None, parts):
            if not (name == "seal_key" and given.strip() == NO_SEAL):
                yield from filter(None, [why_weak(f"CARREL_{name.upper()}", secret)])


def missing_seal_key(settings: object) -> Iterator[str]:
    """Say it of a component that seals pods or looks for seals, in a cluster that has users."""
    if hasattr(settings, "seal_key") and not settings.seal_key and not getattr(settings, "server", ""):
        yield (
            "CARREL_SEAL_KEY is missing: a GPU pod that comes in while the webhook's configuration is missing would be"
            " placed with the tier that its author wrote on it. Give webhook, extender and controller the same secret"
            f" in it ({HOW_TO_MAKE_ONE}), or say that you want no seals: CARREL_SEAL_KEY={NO_SEAL}"
        )
