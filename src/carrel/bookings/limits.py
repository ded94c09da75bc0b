"""The numbers that an admin sets for rules. Pure."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Limit:
    """A number that an admin sets for a rule: `--cooldown-days 7`, `CARREL_COOLDOWN_DAYS=7`."""

    option: str
    """The name of the setting: `cooldown_days`."""
    help: str
    reason: str
    """Why the default is what it is."""
    default: float
    least: float
    most: float | None = None
    unit: timedelta | None = None
    """What the number counts, if the limit is a length of time. None: it is a count."""
    field: str = ""
    """Where `BookingRules` has it, if not in `more`."""

    @property
    def name(self) -> str:
        """On the command line: `--cooldown-days`."""
        return f"--{self.option.replace('_', '-')}"

    def read(self, number: float) -> timedelta | int:
        return int(number) if self.unit is None else self.unit * number

    def write(self, value: timedelta | int) -> float:
        """Return the number as an admin would set it."""
        return value / (self.unit or timedelta(days=1)) if isinstance(value, timedelta) else float(value)

    def shown(self, value: timedelta | int) -> str:
        """Return the number as text, exact to the microsecond: `14`, `0.333333333333333`."""
        return f"{self.write(value):.15g}"
