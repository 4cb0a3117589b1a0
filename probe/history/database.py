"""The index of checks: one SQLite file for a folder of checks, one row for each check.

The checks' folders are the truth: the file can be made anew from them at any time. Only what was removed since is in
the file alone.

Processes may write at the same time: every write is one short transaction that waits for the others. The file keeps
SQLite's rollback journal rather than a write-ahead log, since that one needs shared memory, which hosts that share the
folder do not have.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    NullPool,
    RowMapping,
    String,
    Table,
    Text,
    create_engine,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import SQLAlchemyError

from probe.errors import DamagedHistoryError, HistoryError
from probe.history.checks import PastCheck

VARIABLE = "FIRSTDIFF_HISTORY"
"""Names another file for the history of all checks."""
FILE = "history.sqlite"
BUSY_SECONDS = 30.0
"""Longest wait for another process that writes."""
_APPLICATION = 0x46444946  # FDIF
_VERSION = 1

_TABLE = Table(
    "checks",
    MetaData(),
    Column("id", String(64), primary_key=True),
    Column("time", String(32), nullable=False, index=True),
    Column("profile", Text, nullable=False, index=True),
    Column("variant", Text, nullable=False),
    Column("folder", Text, nullable=False),
    Column("verdict", String(16), nullable=False),
    Column("error", Text),
    Column("first", Text),
    Column("cause", Text),
    Column("fingerprint", String(16)),
    Column("configuration_digest", String(32)),
    Column("environment_digest", String(32)),
    Column("experiment", Text, nullable=False),
    Column("revision", Text, nullable=False),
    Column("cost", Text, nullable=False),
    Column("peak_bytes", BigInteger),
    Column("removed", String(32)),
)
_REMEDY = "firstdiff history --rebuild makes it anew from the checks' folders"
_DAMAGED = ("not a database", "malformed", "no such column", "no such table")
_AS_JSON = ("variant", "first", "cause", "experiment", "revision", "cost")


def history_file(checks: Path) -> Path:
    """The file of a folder of checks: ``history.sqlite`` in it, unless ``FIRSTDIFF_HISTORY`` names another."""
    named = os.environ.get(VARIABLE)
    return Path(named).absolute() if named else checks.absolute() / FILE


class History:
    """The index of checks in one file.

    Args:
        file: The SQLite file; it is made with the first row.

    Example:
        >>> History(Path("checks/history.sqlite")).checks()  # doctest: +SKIP
        [PastCheck(id='5a…', …)]
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def is_there(self) -> bool:
        """Whether the file exists and has something in it."""
        try:
            return self.file.stat().st_size > 0
        except OSError:
            return False

    def checks(self, profile: str | None = None) -> list[PastCheck]:
        """All checks, or those of one profile, the oldest first.

        Raises:
            HistoryError: The file is damaged, of another program, or cannot be read.
        """
        if not self.is_there:
            return []
        query = select(_TABLE).order_by(_TABLE.c.time, _TABLE.c.id)
        if profile is not None:
            query = query.where(_TABLE.c.profile == profile)
        with self._connected() as connection:
            self._require_ours(connection)
            return [self._check(row) for row in connection.execute(query).mappings()]

    def put(self, checks: Sequence[PastCheck]) -> None:
        """Writes checks, in place of those of the same id; that a check was removed is never forgotten.

        Raises:
            HistoryError: The file is damaged, of another program, or cannot be written.
        """
        with self._writing() as connection:
            for check in checks:
                row = self._row(check)
                changes = {name: value for name, value in row.items() if name not in ("id", "removed")}
                statement = insert(_TABLE).values(row)
                connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=changes))

    def mark_removed(self, ids: Iterable[str], time: datetime | None = None) -> None:
        """Notes that the folders of some checks were removed. Their rows stay.

        Raises:
            HistoryError: As for ``put``.
        """
        said = (time or datetime.now(timezone.utc)).isoformat(timespec="seconds")
        with self._writing() as connection:
            for id_ in ids:
                connection.execute(update(_TABLE).where(_TABLE.c.id == id_).values(removed=said))

    # ---- connections ----

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            engine: Engine = create_engine(
                f"sqlite:///{self.file}",
                poolclass=NullPool,
                isolation_level="AUTOCOMMIT",  # transactions are begun here, as ones that write
                connect_args={"timeout": BUSY_SECONDS},
            )
        except ImportError as error:
            raise HistoryError(f"{self.file}: this Python has no sqlite3; there is no history without it") from error
        try:
            with engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise self._error(error) from error
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise DamagedHistoryError(f"{self.file}: a row is damaged ({error}); {_REMEDY}") from error
        finally:
            engine.dispose()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """One transaction; the table is made in it where there is none."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HistoryError(f"{self.file}: cannot be made ({error.strerror})") from error
        with self._connected() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            try:
                if not _number(connection, "SELECT count(*) FROM sqlite_master"):
                    connection.exec_driver_sql(f"PRAGMA application_id = {_APPLICATION}")
                    connection.exec_driver_sql(f"PRAGMA user_version = {_VERSION}")
                    _TABLE.create(connection)
                self._require_ours(connection)
                yield connection
                connection.exec_driver_sql("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise

    def _require_ours(self, connection: Connection) -> None:
        application = _number(connection, "PRAGMA application_id")
        if application != _APPLICATION:
            raise HistoryError(f"{self.file}: is no history of Firstdiff; name another file with {VARIABLE}")
        version = _number(connection, "PRAGMA user_version")
        if version > _VERSION:
            raise HistoryError(f"{self.file}: was written by a later Firstdiff (version {version} of its tables)")

    def _error(self, error: SQLAlchemyError) -> HistoryError:
        said = " ".join(str(getattr(error, "orig", None) or error).split())[:200]
        if any(word in said for word in _DAMAGED):
            return DamagedHistoryError(f"{self.file}: is damaged, or no SQLite file ({said}); {_REMEDY}")
        if "locked" in said:
            return HistoryError(f"{self.file}: another process has kept it for {BUSY_SECONDS:g} s")
        return HistoryError(f"{self.file}: cannot be used ({said})")

    # ---- rows ----

    def _row(self, check: PastCheck) -> dict[str, Any]:
        folder = check.folder.absolute()
        here = self.file.parent
        row: dict[str, Any] = {column.name: getattr(check, column.name) for column in _TABLE.columns}
        row["variant"] = list(check.variant)
        row.update({name: None if row[name] is None else json.dumps(row[name]) for name in _AS_JSON})
        row["time"] = check.time.astimezone(timezone.utc).isoformat(timespec="seconds")
        row["removed"] = check.removed.isoformat(timespec="seconds") if check.removed else None
        row["folder"] = str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
        return {name: _storable(value) if isinstance(value, str) else value for name, value in row.items()}

    def _check(self, row: RowMapping) -> PastCheck:
        values: dict[str, Any] = dict(row)
        values.update({name: None if values[name] is None else json.loads(values[name]) for name in _AS_JSON})
        values["variant"] = tuple(values["variant"])
        values["time"] = datetime.fromisoformat(values["time"])
        values["removed"] = datetime.fromisoformat(values["removed"]) if values["removed"] else None
        values["folder"] = self.file.parent / values["folder"]
        return PastCheck(**values)


def _storable(text: str) -> str:
    """Text that UTF-8 holds."""
    return text.encode(errors="backslashreplace").decode()


def _number(connection: Connection, query: str) -> int:
    return int(connection.exec_driver_sql(query).scalar_one())


def _roll_back(connection: Connection) -> None:
    try:
        connection.exec_driver_sql("ROLLBACK")
    except SQLAlchemyError:
        pass  # SQLite has done so itself, as it does on a full disk
