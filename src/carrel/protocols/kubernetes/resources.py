"""Where each kind lives in the Kubernetes API. Spelled once, here."""

from dataclasses import dataclass
from typing import Generic, TypeVar

V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Resource(Generic[V_co]):
    """One kind of object. The type parameter is the shape (see `shapes`) in which its objects are read in bulk."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection or, with a name, of one object. No namespace: all of them."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)
