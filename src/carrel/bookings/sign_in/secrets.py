"""Secrets that are carried by people: 256 random bits, of which only the SHA-256 is kept.

There is no signing key: a cookie or token that we did not give out has no row, so there is nothing to forge and no
key to leak, and what was given out ends when its row does.
"""

import hashlib
import hmac
import secrets

TOKEN_PREFIX = "carrel_"  # noqa: S105 # so that scanners find leaked ones, and we tell ours from Kubernetes'


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def new_token() -> str:
    return TOKEN_PREFIX + new_secret()


def hashed(secret: str) -> str:
    """Plain SHA-256: nobody can guess 256 random bits, so a slow hash would only slow us down."""
    return hashlib.sha256(secret.encode()).hexdigest()


def derived(secret: str, purpose: str) -> str:
    """What follows from a secret, does not betray it, and is known to nobody who does not have it."""
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def csrf_of(session_secret: str) -> str:
    """What our own pages know and no other site does."""
    return derived(session_secret, "csrf")


def is_same(one: str, other: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(one.encode(), other.encode())
