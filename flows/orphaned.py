"""A flow run whose worker was killed: it goes on, reports, and can still be cancelled.

A worker reads what its runs print, and ends those that are cancelled. Without one, the first line of the log would end
the run (rich does that where nobody reads), and a cancelled run would be marked after some minutes though its process
goes on. So the process gets along without readers, and looks itself what the server says of it.
"""

from __future__ import annotations

import contextvars
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.states import Cancelled
from rich.console import Console

log = logging.getLogger("firstdiff")
HAS_WORKER = "PREFECT__FLOW_RUN_ID"
"""A variable that workers give the processes of their runs."""
LOOK_SECONDS = 4.0
"""Time between two looks: of the fifteen seconds after which no trainer is left, the trainer may need ten."""

PATIENCE_SECONDS = 20.0
"""How long a worker that is there may take: one that has lost its server for a while no longer looks (Prefect 3.9)."""


@contextmanager
def outliving_its_worker() -> Iterator[None]:
    """Makes this process's flow run independent of its worker.

    Once the run is cancelled and its worker is gone, the process ends as by SIGTERM. A run within another flow's leaves
    all that to the other. A run of ``firstdiff check``, which has no worker, ends so too.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.parent_task_run_id is not None:
        yield
        return
    if HAS_WORKER in os.environ:
        _need_no_reader()
    over = threading.Event()
    inside = contextvars.copy_context()
    look = (_look, over, context.flow_run.id, os.getppid())
    thread = threading.Thread(target=inside.run, args=look, name="firstdiff-cancelled", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()  # the thread is not waited for: it may be waiting for a server that is gone


def _look(over: threading.Event, flow_run: UUID, parent: int) -> None:
    cancelled = None
    while not over.wait(LOOK_SECONDS):
        try:
            with get_client(sync_client=True) as client:
                run = client.read_flow_run(flow_run)
                if run.state is None or not (run.state.is_cancelling() or run.state.is_cancelled()):
                    continue
                cancelled = cancelled or time.monotonic()
                has_worker = HAS_WORKER in os.environ and os.getppid() == parent
                if has_worker and time.monotonic() - cancelled < PATIENCE_SECONDS:
                    continue
                log.warning("this run was cancelled, and ends")
                if run.state.is_cancelling():
                    client.set_flow_run_state(run.id, Cancelled(message="It was cancelled; nobody else ended it."))
        except (PrefectException, httpx.HTTPError, OSError) as error:
            log.debug("nobody says whether this run is cancelled: %s", error)
            continue
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
        return


def _need_no_reader() -> None:
    """Makes that nobody reads this process's output any more no reason to end."""
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    for console in {handler.console for handler in handlers if isinstance(handler, PrefectConsoleHandler)}:
        console.on_broken_pipe = partial(_be_quiet, console)  # type: ignore[method-assign]


def _be_quiet(console: Console) -> None:
    console.quiet = True
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
