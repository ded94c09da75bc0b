"""The settings of the booking service. Those of the booking rules follow from the table in `rules`."""

from collections.abc import Iterable
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from carrel.bookings.notifications.settings import NotificationSettings, mistakes_in_notifications
from carrel.bookings.rules import DAY, HOUR, RULES, BookingRules, Rule
from carrel.bookings.sign_in.settings import SignInSettings, mistakes
from carrel.dialects.maia import DEFAULT_TOKENS
from carrel.option_fields import option, setting
from carrel.parsing.secret_settings import mistakes_in_secrets
from carrel.settings import DialectSettings, DraSettings, HubSettings, ServingSettings, TierSettings

if TYPE_CHECKING:
    from carrel.cluster.options import ClusterOptions


def rule_settings(rows: Iterable[Rule]) -> type:
    """A dataclass with one setting for each limit in a table of rules."""
    table = tuple(rows)
    limits = [row.limit for row in table if row.limit is not None]

    def rules(self: Any) -> BookingRules:
        values = {limit.option: limit.read(getattr(self, limit.option)) for limit in limits}
        known = {limit.field: values.pop(limit.option) for limit in limits if limit.field}
        return BookingRules(**known, more=values, rows=table)  # type: ignore[arg-type] # each field has its limit's type

    fields = [
        (limit.option, kind, setting(kind(limit.default), limit.help, min=limit.least, max=limit.most))
        for limit in limits
        for kind in [int if limit.unit is None else float]
    ]
    return make_dataclass("RuleSettings", fields, frozen=True, namespace={"rules": rules})


if TYPE_CHECKING:

    class RuleSettings:
        def rules(self) -> BookingRules: ...
else:
    RuleSettings = rule_settings(RULES)


@dataclass(frozen=True)
class BookingSettings(
    RuleSettings,
    NotificationSettings,
    SignInSettings,
    HubSettings,
    TierSettings,
    DraSettings,
    DialectSettings,
    ServingSettings,
):
    port: int = setting(39997, "Port to listen on; 0: any free one.", min=0, max=65535)
    """Next to the ports of the other components, so that all can run on one machine."""
    database: str = setting("sqlite:///carrel.db", "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME.")
    """One replica can use a file; several replicas need PostgreSQL. A password belongs in the variable."""
    inventory: Path | None = option(
        None, "File with the GPUs, as for `carrel demo --cluster`, instead of a cluster.", exists=True
    )
    """For a lab whose machines are not in a cluster, and for trials."""
    zone: str = setting("UTC", "The lab's IANA time zone.")
    """It says what a day is, and how times are written for people. Bookings themselves are stored in UTC."""
    settling_seconds: int = setting(
        10,
        "Seconds after a booking was made or enlarged in which nobody loses a GPU to it. Within them it may be"
        " cancelled without a cooldown, if no pod uses it. A booking made ahead has settled when it starts.",
        min=0,
        max=3600,
    )
    """Long enough to take back a mistyped booking, short enough to wait for."""
    maia_token: str = option(
        "",
        "Secret that MAIA's clients and Carrel's webhook and controller send; without it they are refused.",
        envvar=["CARREL_MAIA_TOKEN", "API_TOKEN"],
        show_default=False,
    )
    """The defaults of MAIA's chart are public, so they are refused. Give it in the variable: others can see options."""

    def options(self) -> "ClusterOptions":
        from carrel.cluster.options import ClusterOptions

        return ClusterOptions(
            self.carrel_namespace,
            self.dialect_options(),
            tier_policy=self.tier_policy(),
            reads_makers=False,
            holders=self.holders(),
        )

    def wrong(self) -> list[str]:
        """Every setting that cannot be used, all at once."""
        found = [*mistakes(self, self.bind_address), *mistakes_in_notifications(self), *mistakes_in_secrets(self)]
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            found.append(f"--zone is {self.zone!r}; expected an IANA zone such as Europe/Stockholm")
        rules = self.rules()
        if rules.min_duration > rules.max_duration:
            least, most = rules.min_duration / HOUR, rules.max_duration / DAY
            found.append(f"--min-hours is {least:g}, which --max-days {most:g} does not allow")
        if self.maia_token in DEFAULT_TOKENS:
            found.append("--maia-token is a default that everybody knows; expected a secret of your own")
        if not self.maia_token.isascii():
            found.append("--maia-token must be ASCII: it is sent in an HTTP header, which has no other letters")
        return found
