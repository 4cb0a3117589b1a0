"""``python -m flows.serve DESCRIPTOR``: the server of one check, as ``flows.local_server`` starts it.

It imports first, which takes longest, and touches nothing before it is told to. When its standard input ends, so does
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import prefect
import uvicorn
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings

from flows.local_server import GO, GRACE_SECONDS, MIGRATING, SERVING

LOCK = "firstdiff-database.lock"
MARK = "firstdiff-database"
"""In Prefect's home: which version of Prefect migrated the database to which revision."""


def main() -> int:
    """Serves until standard input ends."""
    channel = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever is printed is no message
    listening = socket.socket(fileno=int(sys.argv[1]))
    if sys.stdin.buffer.readline() != GO:
        return 0
    server = uvicorn.Server(uvicorn.Config(create_app(), log_level="error", lifespan="on", access_log=False))
    threading.Thread(target=_end_with_the_check, args=(server,), daemon=True).start()
    _migrate(channel)
    os.write(channel, SERVING)
    os.close(channel)
    server.run(sockets=[listening])
    return 0 if server.started else 3


def _end_with_the_check(server: uvicorn.Server) -> None:
    sys.stdin.buffer.read()
    server.should_exit = True
    threading.Event().wait(GRACE_SECONDS - 1)
    os._exit(0)


def _migrate(channel: int) -> None:
    """Brings the database to this Prefect's newest revision; one process at a time, and once."""
    home = get_current_settings().home
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / LOCK):
        if _is_migrated(home):
            return
        os.write(channel, MIGRATING)
        asyncio.run(_create())
        revision = _revision()
        if revision is not None:
            (home / MARK).write_text(f"{prefect.__version__} {revision}\n", encoding="utf-8")


async def _create() -> None:
    from prefect.server.database import provide_database_interface

    await provide_database_interface().create_db()


def _is_migrated(home: Path) -> bool:
    """Whether the database stands where this version of Prefect left it: alembic takes seconds to find that out."""
    try:
        known = (home / MARK).read_text(encoding="utf-8").split()
    except OSError:
        return False
    revision = _revision()
    return revision is not None and known == [prefect.__version__, revision]


def _revision() -> str | None:
    """The revision of an SQLite database; None where there is none, or it is no SQLite."""
    from prefect.server.database.dependencies import provide_database_interface

    url = provide_database_interface().database_config.connection_url
    scheme, _, path = url.partition(":///")
    if not scheme.startswith("sqlite") or not Path(path).is_file():
        return None
    with contextlib.closing(sqlite3.connect(path, timeout=60)) as connection:
        try:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        except sqlite3.Error:
            return None
    return None if row is None else str(row[0])


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
