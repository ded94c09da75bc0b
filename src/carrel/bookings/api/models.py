"""The JSON of the API: read strictly, with all mistakes listed at once, and with examples for the OpenAPI document."""

import hashlib
import re
from datetime import date, datetime, timedelta
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from carrel.bookings.groups import is_group_name
from carrel.bookings.maintenance_commands import MaintenanceRequest
from carrel.bookings.records import BookingRequest, Changes, State
from carrel.bookings.rules import FIRST_YEAR, LAST_YEAR
from carrel.parsing import Malformed
from carrel.parsing.addresses import is_address, normal
from carrel.parsing.time import instant, seconds

MOST_GPUS = 1024
MOST_DAYS = 3650
A_START, AN_END = "2026-12-12T08:00:00Z", "2026-12-17T08:00:00Z"
_UNWRITABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters and lone surrogates, which no database and no page can show."""


def _instant(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        raise ValueError("an instant such as 2026-12-12T09:00:00+01:00 is expected")
    try:
        moment = instant(value, "", "")
    except Malformed as malformed:
        raise ValueError(f"{malformed.expected} is expected; it needs an offset") from None
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise ValueError(f"a year between {FIRST_YEAR} and {LAST_YEAR} is expected")
    return moment.replace(microsecond=0)


def is_writable(text: str) -> bool:
    return not _UNWRITABLE.search(text)


def _writable(text: str) -> str:
    if not is_writable(text):
        raise ValueError("text without control characters is expected")
    return text.strip()


def _group_name(text: str) -> str:
    if text and not is_group_name(text):
        raise ValueError("the name of a group is expected, of printable characters")
    return text


def _address(text: str) -> str:
    email = normal(text)
    if email and not is_address(email):
        raise ValueError("an e-mail address such as ada@lab.org is expected")
    return email


Instant = Annotated[
    datetime,
    BeforeValidator(_instant),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": [A_START]}),
]
"""RFC 3339 with an offset."""
Word = Annotated[str, Field(max_length=255), AfterValidator(_writable)]
Prose = Annotated[str, Field(max_length=2000), AfterValidator(_writable)]
GroupName = Annotated[Word, AfterValidator(_group_name)]
"""Empty: no group."""
Email = Annotated[Word, AfterValidator(_address)]
"""In lower case; empty stays empty."""
Moment = Annotated[datetime, PlainSerializer(seconds, return_type=str)]
"""In an answer: in UTC, to the second."""
Hours = Annotated[float, AfterValidator(lambda hours: round(hours, 4))]
"""A third of a second counts."""
GpuCount = Annotated[int, Field(ge=1, le=MOST_GPUS, strict=True)]
Days = Annotated[float, Field(gt=0, le=MOST_DAYS, allow_inf_nan=False)]


class RequestModel(BaseModel):
    """A field that does not exist is a mistake of the client, and is refused."""

    model_config = ConfigDict(extra="forbid")


class ResponseModel(BaseModel):
    """An answer. What it is made of may be of any class that has attributes of these names."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class BookingIn(RequestModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "a6000", "days": 5},
                {"model": "NVIDIA-RTX-A6000", "start": A_START, "end": AN_END, "gpus": 2, "note": "ablation runs"},
                {"model": "a6000", "days": 1, "user": "ada@lab.org", "reason": "she asked me to, by phone"},
                {"model": "a6000", "days": 5, "gpus": 4, "group": "vision"},
            ]
        }
    )

    model: Annotated[Word, Field(min_length=1, description="Its name, or a part of it that means one model.")]
    start: Annotated[Instant | None, Field(description="Without it: from now.")] = None
    end: Annotated[Instant | None, Field(description="Either this or `days`.")] = None
    days: Annotated[Days | None, Field(description="Of 24 hours each.")] = None
    gpus: Annotated[GpuCount, Field(description="How many GPUs; 1, if not given.")] = 1
    share: Annotated[bool, Field(description="One share of a GPU's memory instead of whole GPUs.")] = False
    user: Annotated[Word, AfterValidator(normal), Field(description="For whom, if not for yourself.")] = ""
    namespace: Word = ""
    note: Prose = ""
    reason: Annotated[Prose, Field(description="Needed to book for another, who is shown it.")] = ""
    group: Annotated[GroupName, Field(description="The group whose members share it; you must be its manager.")] = ""

    @model_validator(mode="after")
    def _has_one_end(self) -> Self:
        if (self.end is None) == (self.days is None):
            raise ValueError("either end or days is expected")
        return self

    @property
    def fingerprint(self) -> str:
        """The same for the same request."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def request(self) -> BookingRequest:
        length = timedelta(seconds=round(timedelta(days=self.days or 0).total_seconds()))
        same = self.model_dump(exclude={"end", "days"})
        return BookingRequest(**same, end=self.end if self.end is not None else length)


class ChangesIn(RequestModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"end": AN_END}, {"gpus": 1, "note": "one is enough"}, {"model": "a100"}]}
    )

    start: Instant | None = None
    end: Annotated[Instant | None, Field(description="Later extends, earlier shortens.")] = None
    gpus: GpuCount | None = None
    model: Annotated[Word | None, Field(min_length=1, description="Another one, before the booking begins.")] = None
    note: Prose | None = None
    reason: Annotated[Prose, Field(description="Needed to change another's booking.")] = ""

    def changes(self) -> Changes:
        return Changes(**self.model_dump())


class CancelIn(RequestModel):
    reason: Annotated[Prose, Field(description="Needed to cancel another's booking.")] = ""


class MaintenanceIn(RequestModel):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"places": ["gpu-1", "gpu-2/3"], "start": A_START, "end": AN_END, "why": "new fans"},
                {"model": "a6000", "gpus": 2, "start": A_START, "end": AN_END, "why": "lent to a guest"},
            ]
        }
    )

    places: Annotated[
        list[Annotated[Word, Field(min_length=1)]],
        Field(max_length=1000, description="Nodes, and single GPUs as node/number or UUID. Either these or `model`."),
    ] = []
    model: Annotated[Word, Field(description="GPUs of this model, whichever.")] = ""
    gpus: Annotated[GpuCount, Field(description="How many of the model; 1, if not given.")] = 1
    start: Instant
    end: Instant
    why: Annotated[Prose, Field(min_length=1)]

    def request(self) -> MaintenanceRequest:
        return MaintenanceRequest(**self.model_dump(exclude={"places"}), places=tuple(self.places))


class BookingOut(ResponseModel):
    id: str
    user: str
    model: str
    start: Moment
    end: Moment
    gpus: Annotated[int, Field(description="How many GPUs; 1 if it is a share.")]
    share: bool
    state: State
    ends: Annotated[Moment, Field(description="Its end, or when it was cancelled.")]
    cancelled_at: Moment | None
    namespace: str | None = None
    note: Annotated[str | None, Field(description="Only for its person and for lab admins.")] = None
    reason: Annotated[str | None, Field(description="Why somebody else made, changed or cancelled it.")] = None
    created_at: Moment
    created_by: str
    version: int
    consequence: Annotated[str | None, Field(description="What cancelling it now would lead to.")] = None
    group: Annotated[
        str, Field(description="The group that shares it, with `user` as the manager who made it; empty: their own.")
    ] = ""
    used: Annotated[
        int | None, Field(description="How many of its GPUs its pods hold. Null: it does not run, or no cluster.")
    ] = None
    pods: Annotated[
        list[str], Field(description="The pods that it covers, as namespace/name.", examples=[["lab/train-7"]])
    ] = []


class BookingsOut(ResponseModel):
    items: list[BookingOut]
    next_cursor: Annotated[str | None, Field(description="If there is more: pass this as `cursor`.")] = None


class ProblemItem(ResponseModel):
    code: Annotated[str, Field(examples=["cooldown"])]
    title: str
    message: str
    field: str | None = None


class PreviewOut(ResponseModel):
    allowed: bool
    user: str
    model: str
    start: Moment
    end: Moment
    gpus: int
    share: bool
    problems: list[ProblemItem]
    earliest_start: Moment | None
    hint: str | None
    group: str = ""


class DayOut(ResponseModel):
    day: date
    free: int
    shares: int
    overbooked: int


class ModelOut(ResponseModel):
    model: str
    gpus: Annotated[int, Field(description="Healthy GPUs that can be booked.")]
    set_aside: Annotated[
        int, Field(description="Further healthy GPUs: pods use them that no booking can displace.")
    ] = 0
    out_of_use: Annotated[
        int, Field(description="Further GPUs: unhealthy, or of a node that is cordoned or not ready.")
    ] = 0
    why_set_aside: Annotated[str, Field(description="Why further GPUs cannot be booked; empty: there are none.")] = ""
    memory_mib: int
    bookable_now: Annotated[
        int, Field(description="Can be booked from now: free for the whole shortest booking that the rules allow.")
    ]
    free_now: Annotated[int, Field(description="Not booked at this moment.")]
    free_until: Annotated[
        Moment | None,
        Field(description="When fewer than `free_now` are free. Null: after the shortest booking would have ended."),
    ]
    free_until_why: Annotated[
        str, Field(description="What begins then: maintenance, or bookings.", examples=["maintenance"])
    ]
    unheld_now: Annotated[
        int | None, Field(description="Held by no pod now, booked or not. Null: there is no cluster.")
    ]
    next_free: Annotated[Moment | None, Field(description="From when one can be booked. Null: never.")]
    overbooked: Annotated[int, Field(description="How many more are booked than there are, at worst.")]
    shares_per_gpu: int
    days: list[DayOut]


class ModelsOut(ResponseModel):
    zone: Annotated[str, Field(description="In which days begin: yours, or the lab's.", examples=["Europe/Stockholm"])]
    items: list[ModelOut]


class NextFreeOut(ResponseModel):
    model: str
    earliest_start: Annotated[Moment | None, Field(description="Null: never.")]


class RuleOut(ResponseModel):
    code: Annotated[str, Field(description="As in `problems`, when it is broken.", examples=["cooldown"])]
    title: Annotated[str, Field(description="What it is called when it is broken.", examples=["Cooldown not over"])]
    words: Annotated[str, Field(description="The rule in a few words; empty if it does not apply in this lab.")]
    field: Annotated[str | None, Field(description="Of the configuration; null: it has no limit to set.")] = None
    value: Annotated[str | None, Field(description="Of that field, as it is set.", examples=["14d"])] = None


class RulesOut(ResponseModel):
    min_hours: float
    max_hours: float
    cooldown_hours: float
    planned: int
    shares_per_gpu: int
    zone: Annotated[str, Field(description="In which you want to see times: yours, or the lab's.")]
    rules: Annotated[list[RuleOut], Field(description="Every rule that a booking may break.")]


class UseOut(ResponseModel):
    start: Annotated[Moment, Field(description="When the step begins of which these hours are.")]
    end: Moment
    user: Annotated[str, Field(description="By person: empty are pods without one, and people who were forgotten.")]
    model: str
    bookings: int
    gpu_hours: Annotated[
        Hours | None, Field(description="Booked. Null: by GPU, and where bookings are made elsewhere.")
    ]
    group: Annotated[str, Field(description="For which they booked; empty: for themselves.")] = ""
    gpu: Annotated[str, Field(description="By GPU: its UUID.")] = ""
    held_gpu_hours: Annotated[
        Hours | None, Field(description="Held by pods. Null: there is no cluster, or the row is of a group.")
    ] = None
    active_gpu_hours: Annotated[
        Hours | None, Field(description="Of the held ones, minutes in which the GPU computed at all.")
    ] = None
    idle_gpu_hours: Annotated[Hours | None, Field(description="And minutes in which it did not.")] = None
    unknown_gpu_hours: Annotated[
        Hours | None, Field(description="The rest: nobody knows whether the GPU computed, or for which of its pods.")
    ] = None
    covered_gpu_hours: Annotated[Hours | None, Field(description="Of the held ones, those that a booking covered.")] = (
        None
    )
    opportunistic_gpu_hours: Annotated[
        Hours | None, Field(description="And those beyond a booking, or without one.")
    ] = None


class GapOut(ResponseModel):
    start: Moment
    end: Moment


class UsageOut(ResponseModel):
    start: Moment
    end: Moment
    held_since: Annotated[
        Moment | None, Field(description="Since when held hours are counted; null: nothing was counted yet.")
    ] = None
    held_until: Annotated[Moment | None, Field(description="Up to when they are counted.")] = None
    gaps: Annotated[
        list[GapOut],
        Field(description="When nobody counted. Pods that held GPUs before and after count, their use is unknown."),
    ]
    items: list[UseOut]


class WindowOut(ResponseModel):
    id: str
    places: Annotated[list[str], Field(description="Nodes, and single GPUs as node/number. Empty: a model is named.")]
    model: Annotated[str, Field(description="Empty: nodes and GPUs are named.")]
    gpus: Annotated[int, Field(description="How many of the model, whichever.")]
    start: Moment
    end: Moment
    why: str
    created_by: str


class WindowsOut(ResponseModel):
    items: list[WindowOut]


class HitBookingOut(ResponseModel):
    id: str
    user: str
    group: str
    model: str
    gpus: int
    share: bool
    start: Moment
    end: Moment
    pods: Annotated[list[str], Field(description="Its pods that hold one of the GPUs now.")]
    lacks_gpus: Annotated[bool, Field(description="More is booked in that time than is left.")]


class HitPodOut(ResponseModel):
    name: Annotated[str, Field(examples=["lab/train-7"])]
    person: Annotated[str, Field(description="Empty: nobody's.")]


class HitOut(ResponseModel):
    """Whom a maintenance hits, as far as it is known before."""

    models: Annotated[dict[str, int], Field(description="How many GPUs that can be booked it closes, by model.")]
    bookings: list[HitBookingOut]
    pods: Annotated[
        list[HitPodOut], Field(description="On the GPUs now, beyond those bookings: they may still run by then.")
    ]


class MaintenanceOut(WindowOut):
    hit: HitOut


class LogEntryOut(ResponseModel):
    number: int
    at: Moment
    actor: str
    action: str
    subject: str
    booking: str
    why: str
    details: dict[str, str]


class LogOut(ResponseModel):
    items: list[LogEntryOut]
    next_before: Annotated[int | None, Field(description="If there is more: pass this as `before`.")] = None


class FeedOut(ResponseModel):
    url: Annotated[
        str, Field(description="Shown once. Everybody who has it sees your bookings; make a new one to revoke it.")
    ]


class ProblemOut(ResponseModel):
    """RFC 9457."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:carrel:rules-broken",
                    "title": "Cooldown not over",
                    "status": 422,
                    "detail": "14 d must lie between two bookings; yours of NVIDIA-RTX-A6000 ends Sat 28 Nov 2026"
                    " 09:00 CET. The next may start Sat 12 Dec 2026 09:00 CET.",
                    "code": "rules-broken",
                    "hint": "carrel book nvidia-rtx-a6000 --days 5 --from 2026-12-12T09:00+01:00",
                    "earliest_start": A_START,
                    "problems": [{"code": "cooldown", "title": "Cooldown not over", "message": "14 d must lie …"}],
                }
            ]
        }
    )

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str | None = None
    earliest_start: str | None = None
    problems: list[ProblemItem] = []
