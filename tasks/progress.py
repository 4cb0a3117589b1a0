"""A progress artifact while a trainer runs: steps finished over steps asked, read from the run's manifests."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.exceptions import PrefectException

from probe.errors import DumpError
from probe.language import said, tell
from probe.store.manifests import read_manifest

SECONDS = 2.0
"""Time between two looks at the manifests."""
log = logging.getLogger("firstdiff")


def steps_finished(dump: Path) -> int:
    """Steps that are whole so far; 0 where nothing can be read yet."""
    try:
        manifest = read_manifest(dump) if dump.is_dir() else None
    except DumpError:  # it is being written
        return 0
    return (manifest.steps_finished or 0) if manifest else 0


@contextmanager
def shown_progress(run: str, dump: Path, steps: int | None) -> Iterator[None]:
    """Shows on the page how far a run is, while it lasts.

    Args:
        run: ``a``, ``b``, ``c`` or ``d``.
        dump: The run's dump folder.
        steps: Steps that it trains; None where nobody knows, and nothing is shown.
    """
    if steps is None:
        yield
        return
    ended = threading.Event()

    def show() -> None:
        shown = 0
        try:
            artifact = create_progress_artifact(0.0, description=_words(run, 0, steps))
            while not ended.wait(SECONDS) or steps_finished(dump) != shown:
                if (done := steps_finished(dump)) == shown:
                    continue
                shown = done
                part = min(100.0, 100.0 * done / steps)
                update_progress_artifact(artifact, part, _words(run, done, steps))  # type: ignore[arg-type]
        except (PrefectException, httpx.HTTPError, OSError) as error:
            log.warning("the page shows no progress: %s", " ".join(str(error).split())[:200])

    thread = threading.Thread(target=contextvars.copy_context().run, args=(show,), name="firstdiff-progress")
    thread.daemon = True
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(10)


def _words(run: str, done: int, steps: int) -> str:
    return said(tell("Run {run}: {done} of {steps} training steps", run=run, done=done, steps=steps))
