"""What a migration did to tables that were there before it, beyond adding what an older program need not know."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, Inspector, inspect


@dataclass(frozen=True)
class Column:
    type: str
    may_be_empty: bool
    has_default: bool


@dataclass(frozen=True)
class Table:
    columns: Mapping[str, Column]
    rules: frozenset[str]
    """What refuses a row: keys, unique indexes, checks."""


def tables_of(connection: Connection) -> dict[str, Table]:
    seen = inspect(connection)
    return {name: _table(seen, name) for name in seen.get_table_names()}


def _table(seen: Inspector, name: str) -> Table:
    columns = {
        each["name"]: Column(str(each["type"]), bool(each["nullable"]), each.get("default") is not None)
        for each in seen.get_columns(name)
    }
    key = seen.get_pk_constraint(name)["constrained_columns"]
    rules = {f"primary key {key}"}
    rules |= {f"unique {each['column_names']}" for each in seen.get_unique_constraints(name)}
    rules |= {f"unique {each['column_names']}" for each in seen.get_indexes(name) if each["unique"]}
    rules |= {f"check {each['sqltext']}" for each in seen.get_check_constraints(name)}
    rules |= {f"reference {each['constrained_columns']}" for each in seen.get_foreign_keys(name)}
    return Table(columns, frozenset(rules))


def more_than_added(before: Mapping[str, Table], after: Mapping[str, Table]) -> list[str]:
    found = [f"{name}: the table is gone" for name in before if name not in after]
    for name in [each for each in before if each in after]:
        was, now = before[name], after[name]
        for column, had in was.columns.items():
            if column not in now.columns:
                found.append(f"{name}.{column} is gone")
            elif now.columns[column] != had:
                found.append(f"{name}.{column} was {had}, and is {now.columns[column]}")
        found += [
            f"{name}.{column} must be filled, and older programs do not know it"
            for column, has in now.columns.items()
            if column not in was.columns and not has.may_be_empty and not has.has_default
        ]
        found += [f"{name}: {rule} is new" for rule in sorted(now.rules - was.rules)]
        found += [f"{name}: {rule} is gone" for rule in sorted(was.rules - now.rules)]
    return found
