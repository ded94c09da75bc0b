"""Secrets of sessions and tokens: 256 random bits, of which only the SHA-256 is stored.

There is no signing key that could leak. A cookie or token that Carrel did not issue has no row in the database, and one
that it issued ends when its row is deleted.
"""

import hashlib
import hmac
import secrets

TOKEN_PREFIX = "carrel_"  # noqa: S105 # secret scanners find it, and it differs from Kubernetes' tokens


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def new_token() -> str:
    return TOKEN_PREFIX + new_secret()


def hashed(secret: str) -> str:
    """Plain SHA-256: nobody can guess 256 random bits, so a slow hash would add nothing but time."""
    return hashlib.sha256(secret.encode()).hexdigest()


def derived(secret: str, purpose: str) -> str:
    """A value that only who has the secret can compute, and that does not reveal the secret."""
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def csrf_of(session_secret: str) -> str:
    """The CSRF token of a session: our own pages have it, other sites do not."""
    return derived(session_secret, "csrf")


def is_same(one: str, other: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())
