"""People, sessions, pending logins and tokens in a database.

What removes something (a pending login, a session, a token) is one statement, so that of two replicas that do it at the
same time one succeeds.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from carrel.bookings.groups import SEEN_COUNTS, SEEN_PRECISION, GroupSource, groups_to_keep
from carrel.bookings.notifications.choices import MessageChoices, choices_of
from carrel.bookings.people import Grant, How, KnownPerson, PendingLogin, Role, Scope, Session, Token
from carrel.bookings.records import LogEntry
from carrel.bookings.store import tables
from carrel.bookings.store.bookings import SqlWriting
from carrel.bookings.store.database import Database
from carrel.parsing.time import zone_named

W = tables.seen_groups.c
E, P, S, T, U = tables.pending_logins.c, tables.people.c, tables.sessions.c, tables.tokens.c, tables.used.c


TokenFor = Callable[[PendingLogin], tuple[str, Token] | None]
"""The token that a login is exchanged for, with the hash of its secret; None: none."""


class SqlPeople:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin_login(self, secret_hash: str, login: PendingLogin) -> None:
        async with self._database.writing() as connection:
            values = {"facts": dict(login.facts), "expires_at": login.expires}
            await connection.execute(insert(tables.pending_logins).values(secret_hash=secret_hash, **values))

    async def take_login(
        self, secret_hash: str, now: datetime, token_for: TokenFor = lambda _: None
    ) -> PendingLogin | None:
        """Removes it: of two callers with the same secret, at most one gets it. None if it has expired. The token is
        added in the same transaction: who is signed out everywhere loses either the login or the token."""
        async with self._database.reading() as connection:
            known = await connection.execute(select(E.secret_hash).where(E.secret_hash == secret_hash))
            if known.one_or_none() is None:
                return None  # a guessed secret does not get the lock of the writers
        async with self._database.writing() as connection:
            taken = delete(tables.pending_logins).where(E.secret_hash == secret_hash)
            row = (await connection.execute(taken.returning(E.facts, E.expires_at))).one_or_none()
            login = PendingLogin(row.facts, row.expires_at) if row is not None and now < row.expires_at else None
            if login is not None and (made := token_for(login)) is not None:
                await _add_token(connection, *made)
        return login

    async def use_once(self, secret_hash: str, until: datetime) -> bool:
        """True for the first caller with this secret; it is remembered until then."""
        async with self._database.writing() as connection:
            known = await connection.execute(select(U.secret_hash).where(U.secret_hash == secret_hash))
            is_new = known.one_or_none() is None
            if is_new:
                await connection.execute(insert(tables.used).values(secret_hash=secret_hash, expires_at=until))
            return is_new

    async def begin_session(self, secret_hash: str, session: Session) -> None:
        """Also stores the person."""
        values = {
            "person": session.email,
            "name": session.name,
            "roles": _words(session.roles),
            "how": session.how.value,
            "began_at": session.began,
            "expires_at": session.expires,
        }
        async with self._database.writing() as connection:
            await connection.execute(insert(tables.sessions).values(secret_hash=secret_hash, **values))
            await _set_person(connection, session.email, name=session.name, last_seen_at=session.began)

    async def session(self, secret_hash: str, now: datetime) -> Session | None:
        async with self._database.reading() as connection:
            wanted = select(tables.sessions).where(S.secret_hash == secret_hash, S.expires_at > now)
            row = (await connection.execute(wanted)).one_or_none()
        if row is None:
            return None
        return Session(row.person, row.name, _roles(row.roles), How(row.how), row.began_at, row.expires_at)

    async def end_session(self, secret_hash: str) -> None:
        async with self._database.writing() as connection:
            await connection.execute(delete(tables.sessions).where(S.secret_hash == secret_hash))

    async def sign_out_everywhere(self, email: str, now: datetime) -> int:
        """Ends a person's sessions, revokes their tokens and their feed, and forgets the groups that were seen; returns
        the number of sessions and tokens."""
        async with self._database.writing() as connection:
            return await SqlWriting(connection).sign_out(email, now)

    async def add_token(self, secret_hash: str, token: Token) -> None:
        async with self._database.writing() as connection:
            await _add_token(connection, secret_hash, token)

    async def token(self, secret_hash: str, now: datetime) -> Token | None:
        """Only if it is valid."""
        async with self._database.reading() as connection:
            row = (await connection.execute(select(tables.tokens).where(T.secret_hash == secret_hash))).one_or_none()
        token = _token(row) if row is not None else None
        if token is None or not token.is_valid(now):
            return None
        if token.is_use_to_be_noted(now):
            async with self._database.writing() as connection:
                # It may have been revoked while this waited for the other writers.
                noted = update(tables.tokens).where(T.secret_hash == secret_hash, T.revoked_at.is_(None))
                if not (await connection.execute(noted.values(last_used_at=now))).rowcount:
                    return None
        return token

    async def tokens_of(self, email: str) -> Sequence[Token]:
        """Also those that expired or were revoked, newest first."""
        wanted = select(tables.tokens).where(T.person == email).order_by(T.created_at.desc(), T.id.desc())
        async with self._database.reading() as connection:
            return [_token(row) for row in await connection.execute(wanted)]

    async def revoke_token(self, email: str, token_id: str, now: datetime) -> bool:
        """False if this person has none of that id."""
        theirs = (T.person == email, T.id == token_id)
        async with self._database.writing() as connection:
            revoked = update(tables.tokens).where(*theirs, T.revoked_at.is_(None)).values(revoked_at=now)
            await connection.execute(revoked)
            return (await connection.execute(select(T.id).where(*theirs))).one_or_none() is not None

    async def person(self, email: str) -> KnownPerson:
        """What is stored about a person; nothing if they have never signed in and have no role."""
        async with self._database.reading() as connection:
            row = (await connection.execute(select(tables.people).where(P.person == email))).one_or_none()
        return _known(row) if row is not None else KnownPerson(email)

    async def choose_zone(self, email: str, zone: ZoneInfo | None) -> None:
        """None: the lab's."""
        async with self._database.writing() as connection:
            await _set_person(connection, email, zone=zone.key if zone else None)

    async def choose_messages(self, email: str, choices: MessageChoices) -> None:
        async with self._database.writing() as connection:
            await _set_person(connection, email, messages=choices.stored)

    async def grant(self, grant: Grant) -> None:
        """The log entry is written in the same transaction."""
        word = grant.role.value if grant.role else None
        action = "role-given" if grant.role else "role-taken"
        async with self._database.writing() as connection:
            await _set_person(connection, grant.email, granted=word)
            entry = LogEntry(grant.at, grant.by, action, grant.email, why=grant.why, details={"role": word or ""})
            await SqlWriting(connection).write_log(entry)

    async def known(self) -> Sequence[KnownPerson]:
        async with self._database.reading() as connection:
            rows = await connection.execute(select(tables.people).order_by(P.person))
            return [_known(row) for row in rows]

    async def saw_groups(self, email: str, source: GroupSource, groups: Collection[str], now: datetime) -> None:
        """Replaces what this source told before. To the hour: what is known and fresh is not written again."""
        kept, theirs = groups_to_keep(groups), (W.person == email, W.source == source.value)
        async with self._database.reading() as connection:
            rows = (await connection.execute(select(W.group_name, W.seen_at).where(*theirs))).all()
        if {row.group_name for row in rows} == kept and all(now - row.seen_at < SEEN_PRECISION for row in rows):
            return
        async with self._database.writing() as connection:
            await connection.execute(delete(tables.seen_groups).where(*theirs))
            seen = {"person": email, "source": source.value, "seen_at": now}
            if kept:
                await connection.execute(
                    insert(tables.seen_groups), [{**seen, "group_name": group} for group in sorted(kept)]
                )

    async def seen_groups(self, email: str) -> Mapping[str, datetime]:
        """The groups that were seen at sign-ins, and when last."""
        wanted = select(W.group_name, W.seen_at).where(W.person == email).order_by(W.seen_at)
        async with self._database.reading() as connection:
            return {row.group_name: row.seen_at for row in await connection.execute(wanted)}

    async def forget_expired(self, now: datetime) -> int:
        """Deletes sessions, logins and seen groups that have expired; returns how many."""
        async with self._database.writing() as connection:
            sessions = await connection.execute(delete(tables.sessions).where(S.expires_at <= now))
            pending_logins = await connection.execute(delete(tables.pending_logins).where(E.expires_at <= now))
            used = await connection.execute(delete(tables.used).where(U.expires_at <= now))
            seen = await connection.execute(delete(tables.seen_groups).where(W.seen_at <= now - SEEN_COUNTS))
            return sessions.rowcount + pending_logins.rowcount + used.rowcount + seen.rowcount


async def _add_token(connection: AsyncConnection, secret_hash: str, token: Token) -> None:
    values = {
        "id": token.id,
        "person": token.email,
        "label": token.label,
        "how": token.how.value,
        "scopes": _words(token.scopes),
        "roles": _words(token.roles),
        "created_at": token.created,
        "expires_at": token.expires,
    }
    await connection.execute(insert(tables.tokens).values(secret_hash=secret_hash, **values))


async def _set_person(connection: AsyncConnection, email: str, **values: Any) -> None:
    """Writers are serialised: nobody else adds the row in between."""
    outcome = await connection.execute(update(tables.people).where(P.person == email).values(values))
    if not outcome.rowcount:
        await connection.execute(insert(tables.people).values({"person": email, "name": "", **values}))


def _words(values: Iterable[Role | Scope]) -> list[str]:
    return sorted(value.value for value in values)


def _roles(words: Iterable[str]) -> frozenset[Role]:
    return frozenset(Role(word) for word in words)


def _known(row: Row[Any]) -> KnownPerson:
    granted = Role(row.granted) if row.granted else None
    zone, messages = zone_named(row.zone or ""), choices_of(row.messages)
    return KnownPerson(row.person, row.name, granted, row.last_seen_at, zone, messages)


def _token(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        email=row.person,
        label=row.label,
        scopes=frozenset(Scope(word) for word in row.scopes),
        created=row.created_at,
        expires=row.expires_at,
        roles=_roles(row.roles),
        how=How(row.how),
        last_used=row.last_used_at,
        revoked=row.revoked_at,
    )
