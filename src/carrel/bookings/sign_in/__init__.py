"""Who calls, and may they? Sign-in, sessions, tokens, Kubernetes' word, roles, and the gate that every call passes.

Reading order: `recognition` (who), `secrets`, `oidc`, `kubernetes`, `roles`; then `routes` and `credentials` (the
HTTP calls), `forms` (their pages), `gate` and `rates`.
"""

from carrel.bookings.sign_in.gate import PER_ADDRESS, PER_PERSON, Gate, Limits
from carrel.bookings.sign_in.identity import (
    CurrentPerson,
    Identity,
    Means,
    NotSignedIn,
    Premises,
    current_person,
    forbidden,
    needs,
)
from carrel.bookings.sign_in.oidc import Provider, SignIn
from carrel.bookings.sign_in.rates import Buckets, Rate
from carrel.bookings.sign_in.roles import RoleBook
from carrel.bookings.sign_in.routes import install_identity
from carrel.bookings.sign_in.token_review import Kubernetes, Vouching

__all__ = [
    "PER_ADDRESS",
    "PER_PERSON",
    "Buckets",
    "CurrentPerson",
    "Gate",
    "Identity",
    "Kubernetes",
    "Limits",
    "Means",
    "NotSignedIn",
    "Premises",
    "Provider",
    "Rate",
    "RoleBook",
    "SignIn",
    "Vouching",
    "current_person",
    "forbidden",
    "install_identity",
    "needs",
]
