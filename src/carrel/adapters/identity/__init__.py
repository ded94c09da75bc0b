"""Who calls, and may they? Sign-in, sessions, tokens, Kubernetes' word, roles, and the gate that every call passes.

Reading order: `recognition` (who), `secrets`, `oidc`, `kubernetes`, `roles`; then `routes` and `credentials` (the
HTTP calls), `forms` (their pages), `gate` and `rates`.
"""

from carrel.adapters.identity.gate import PER_ADDRESS, PER_PERSON, Gate, Limits
from carrel.adapters.identity.kubernetes import Kubernetes, Vouching
from carrel.adapters.identity.oidc import Provider, SignIn
from carrel.adapters.identity.rates import Buckets, Rate
from carrel.adapters.identity.recognition import (
    CurrentPerson,
    Identity,
    Means,
    NotSignedIn,
    Premises,
    current_person,
    forbidden,
    needs,
)
from carrel.adapters.identity.roles import RoleBook
from carrel.adapters.identity.routes import install_identity

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
