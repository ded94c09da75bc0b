"""People in memory; it passes the same contract tests as the store (tests/contracts/people)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

from carrel.bookings.groups import SEEN_COUNTS, SEEN_PRECISION, GroupSource, groups_to_keep
from carrel.bookings.notifications.choices import MessageChoices
from carrel.bookings.people import Grant, KnownPerson, PendingLogin, Session, Token
from carrel.bookings.store.people import SqlPeople, TokenFor


class PeopleInMemory(SqlPeople):
    def __init__(self) -> None:
        self._errands: dict[str, PendingLogin] = {}
        self._used: dict[str, datetime] = {}
        self._sessions: dict[str, Session] = {}
        self._tokens: dict[str, Token] = {}
        self._known: dict[str, KnownPerson] = {}
        self._seen: dict[tuple[str, GroupSource], dict[str, datetime]] = {}

    async def begin_login(self, secret_hash: str, login: PendingLogin) -> None:
        self._errands[secret_hash] = login

    async def take_login(
        self, secret_hash: str, now: datetime, token_for: TokenFor = lambda _: None
    ) -> PendingLogin | None:
        errand = self._errands.pop(secret_hash, None)
        if errand is None or now >= errand.expires:
            return None
        if (made := token_for(errand)) is not None:
            await self.add_token(*made)
        return errand

    async def use_once(self, secret_hash: str, until: datetime) -> bool:
        is_new = secret_hash not in self._used
        self._used.setdefault(secret_hash, until)
        return is_new

    async def begin_session(self, secret_hash: str, session: Session) -> None:
        self._sessions[secret_hash] = session
        known = self._known.get(session.email, KnownPerson(session.email))
        self._known[session.email] = replace(known, name=session.name, last_seen=session.began)

    async def session(self, secret_hash: str, now: datetime) -> Session | None:
        session = self._sessions.get(secret_hash)
        return session if session and now < session.expires else None

    async def end_session(self, secret_hash: str) -> None:
        self._sessions.pop(secret_hash, None)

    async def sign_out_everywhere(self, email: str, now: datetime) -> int:
        theirs = [key for key, session in self._sessions.items() if session.email == email]
        for key in theirs:
            del self._sessions[key]
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != email}
        valid = [token for token in await self.tokens_of(email) if token.is_valid(now)]
        for token in valid:
            await self.revoke_token(email, token.id, now)
        return len(theirs) + len(valid)

    async def add_token(self, secret_hash: str, token: Token) -> None:
        self._tokens[secret_hash] = token

    async def token(self, secret_hash: str, now: datetime) -> Token | None:
        token = self._tokens.get(secret_hash)
        if token is None or not token.is_valid(now):
            return None
        if token.is_use_to_be_noted(now):
            self._tokens[secret_hash] = replace(token, last_used=now)
        return token

    async def tokens_of(self, email: str) -> Sequence[Token]:
        theirs = [token for token in self._tokens.values() if token.email == email]
        return sorted(theirs, key=lambda token: (token.created, token.id), reverse=True)

    async def revoke_token(self, email: str, token_id: str, now: datetime) -> bool:
        for key, token in self._tokens.items():
            if token.email == email and token.id == token_id:
                self._tokens[key] = replace(token, revoked=token.revoked or now)
                return True
        return False

    async def person(self, email: str) -> KnownPerson:
        return self._known.get(email, KnownPerson(email))

    async def choose_zone(self, email: str, zone: ZoneInfo | None) -> None:
        self._known[email] = replace(await self.person(email), zone=zone)

    async def choose_messages(self, email: str, choices: MessageChoices) -> None:
        self._known[email] = replace(await self.person(email), messages=choices)

    async def grant(self, grant: Grant) -> None:
        self._known[grant.email] = replace(self._known.get(grant.email, KnownPerson(grant.email)), granted=grant.role)

    async def known(self) -> Sequence[KnownPerson]:
        return sorted(self._known.values(), key=lambda known: known.email)

    async def saw_groups(self, email: str, source: GroupSource, groups: Collection[str], now: datetime) -> None:
        kept, known = groups_to_keep(groups), self._seen.get((email, source), {})
        if known.keys() != kept or any(now - seen >= SEEN_PRECISION for seen in known.values()):
            self._seen[email, source] = dict.fromkeys(kept, now)

    async def seen_groups(self, email: str) -> Mapping[str, datetime]:
        found: dict[str, datetime] = {}
        for (person, _), seen in self._seen.items():
            for group, at in seen.items() if person == email else ():
                found[group] = max(at, found.get(group, at))
        return found

    async def forget_expired(self, now: datetime) -> int:
        before = len(self._errands) + len(self._sessions) + len(self._used) + sum(map(len, self._seen.values()))
        self._seen = {
            key: {group: at for group, at in seen.items() if now < at + SEEN_COUNTS} for key, seen in self._seen.items()
        }
        self._used = {key: until for key, until in self._used.items() if now < until}
        self._errands = {key: each for key, each in self._errands.items() if now < each.expires}
        self._sessions = {key: each for key, each in self._sessions.items() if now < each.expires}
        left = len(self._errands) + len(self._sessions) + len(self._used) + sum(map(len, self._seen.values()))
        return before - left
