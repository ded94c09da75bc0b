"""Options of components that are fields of the configuration now, and variables that gave them; and options that only
the environment gives now, because they are secrets.

Carrel 0.1 had them as options of up to five processes. Who still gives one is told where it went: what is ignored
silently would be a rule that does not hold.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Moved:
    """A setting that moved."""

    option: str
    field: str
    """Path in the configuration; empty: there is none."""
    variable: str
    more: str = ""
    """What else there is to know."""
    is_secret: bool = False
    """Whether the variable still gives it."""

    @property
    def where(self) -> str:
        """Where it went, in words."""
        if self.is_secret:
            return f"is only given by the environment, as {self.variable}: other users of the machine see options"
        what = f"is {self.field} in the configuration" if self.field else "is gone"
        return f"{what}: {self.more}" if self.more else what


def _moved(option: str, field: str, variable: str = "", more: str = "") -> Moved:
    named = variable or f"CARREL_{option.removeprefix('--').replace('-', '_').upper()}"
    return Moved(option, field, named, more)


def _secret(option: str) -> Moved:
    return replace(_moved(option, ""), is_secret=True)


_SECONDS = "write its unit, as in 90s or 10m"

MOVED: tuple[Moved, ...] = (
    _moved("--zone", "lab.timezone"),
    _moved("--memory-unit", "memory.unit"),
    _moved("--memory-resource", "memory.resource"),
    _moved("--shared-claims-per-gpu", "dialects.sharedClaimsPerGpu"),
    _moved("--cuda-devices", "dialects.cudaDevices"),
    _moved("--mode", "nodes.plugin", more="native or coexist; an agent that only reports has --report-only"),
    _moved("--device-list", "nodes.deviceList"),
    _moved("--hide-gpus-from", "nodes.hideGpusFrom"),
    _moved("--runtime-class", "nodes.runtimeClass"),
    _moved("--schedulers", "pods.schedulers", more="a list"),
    _moved("--strict", "pods.strict"),
    _moved("--lenient", "pods.strict", "CARREL_STRICT"),
    _moved("--owner-annotation", "pods.ownerAnnotation"),
    _moved("--username-prefix", "pods.usernamePrefix"),
    _moved("--kubernetes-user-prefix", "pods.usernamePrefix"),
    _moved("--trusted", "pods.trustedUsers", "CARREL_TRUSTED_USERS", "a list"),
    _moved("--longest-grace", "pods.longestGrace", more=_SECONDS),
    _moved("--spawners", "hubs.accounts", more="a list"),
    _moved("--username-domain", "hubs.usernameDomain"),
    _moved("--hub-users", "hubs.users", more="the content of the file"),
    _moved("--opportunistic-gpus", "tiers.opportunisticGpus"),
    _moved("--revoke-older-pods", "tiers.revokeOlderPods"),
    _moved("--spare-older-pods", "tiers.revokeOlderPods", "CARREL_REVOKE_OLDER_PODS"),
    _moved("--when-full", "tiers.whenFull"),
    _moved("--wait-before-cpu", "tiers.waitBeforeCpu", more=_SECONDS),
    _moved("--revocation-grace", "tiers.revocationGrace", more=_SECONDS),
    _moved("--notebook-grace", "tiers.notebookGrace", more=_SECONDS),
    _moved("--minimum-time", "tiers.minimumTime", more=_SECONDS),
    _moved("--victims", "tiers.victims"),
    _moved("--at-end", "tiers.atEnd"),
    _moved("--dra", "resourceClaims.enabled"),
    _moved("--no-dra", "resourceClaims.enabled", "CARREL_DRA"),
    _moved("--dra-driver", "resourceClaims.driver"),
    _moved("--placement", "scheduling.placement"),
    _moved("--reservation-spelling", "reservations.names"),
    _moved("--public-url", "bookings.publicUrl"),
    _moved("--base-path", "bookings.publicUrl", more="its path"),
    _moved("--min-hours", "bookings.rules.minDuration", more="write its unit, as in 24h"),
    _moved("--max-days", "bookings.rules.maxDuration", more="write its unit, as in 14d"),
    _moved("--cooldown-days", "bookings.rules.cooldown", more="write its unit, as in 14d"),
    _moved("--planned", "bookings.rules.planned"),
    _moved("--max-gpus", "bookings.rules.maxGpus"),
    _moved("--group-max-gpus", "bookings.rules.groupMaxGpus"),
    _moved("--shares-per-gpu", "bookings.rules.sharesPerGpu"),
    _moved("--settling-seconds", "bookings.rules.settlingTime", more="write its unit, as in 10s"),
    _moved("--oidc-issuer", "bookings.signIn.oidc.issuer"),
    _moved("--oidc-client-id", "bookings.signIn.oidc.clientId"),
    _moved("--oidc-scopes", "bookings.signIn.oidc.scopes"),
    _moved("--oidc-email-claim", "bookings.signIn.oidc.emailClaim"),
    _moved("--oidc-groups-claim", "bookings.signIn.oidc.groupsClaim"),
    _moved("--hub-url", "bookings.signIn.hub.url"),
    _moved("--hub-api-url", "bookings.signIn.hub.apiUrl"),
    _moved("--hub-client-id", "bookings.publicUrl", more="of /services/NAME it is service-NAME, else service-carrel"),
    _moved("--token-audience", "bookings.signIn.tokenAudience"),
    _moved("--trusted-proxy", "bookings.signIn.trustedProxies", "CARREL_TRUSTED_PROXIES", "a list"),
    _moved("--member-group", "bookings.roles.memberGroups", "CARREL_MEMBER_GROUPS", "a list"),
    _moved("--lab-admin-group", "bookings.roles.labAdminGroups", "CARREL_LAB_ADMIN_GROUPS", "a list"),
    _moved("--platform-admin-group", "bookings.roles.platformAdminGroups", "CARREL_PLATFORM_ADMIN_GROUPS", "a list"),
    _moved("--lab-admin", "bookings.roles.labAdmins", "CARREL_LAB_ADMINS", "a list"),
    _moved("--platform-admin", "bookings.roles.platformAdmins", "CARREL_PLATFORM_ADMINS", "a list"),
    _moved("--mail-from", "notifications.mailFrom"),
    _moved("--webhook-url", "notifications.webhookUrl"),
    _moved("--service", "", "CARREL_SERVICES", "nobody asks about everybody any more"),
    _moved("--context", "", more="the kubeconfig's current context counts; --kubeconfig names another file"),
    _moved("--cdi-folder", "", more="devices of ResourceClaims are written to /var/run/cdi, where runtimes read them"),
    *map(_secret, ("--seal-key", "--path-secret", "--api-token", "--terminator-token", "--maia-token", "--smtp-url")),
    *map(_secret, ("--oidc-client-secret", "--hub-client-secret", "--webhook-secret")),
)
"""In the order of the configuration; then what is no field of it."""

BY_OPTION = {each.option: each for each in MOVED}
BY_VARIABLE = {each.variable: each for each in reversed(MOVED) if not each.is_secret}
"""Of two options with one variable, the first is meant."""


def moved_options(arguments: Iterable[str]) -> list[Moved]:
    """Return those among the words of a command line."""
    return [BY_OPTION[name] for each in arguments if (name := each.partition("=")[0]) in BY_OPTION]


def moved_variables(names: Iterable[str]) -> Iterator[str]:
    """Say where each variable among these names went."""
    for name in sorted(set(names) & BY_VARIABLE.keys()):
        yield f"{name} {BY_VARIABLE[name].where}"
