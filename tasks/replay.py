"""Part of step 6: run the captured module again, alone."""

from __future__ import annotations

import logging
from pathlib import Path

from prefect import task

from probe.language import tell
from probe.replay import Answer, replay_check, summary
from tasks import UNCACHED, Begun, begin

SECONDS = 1.5
"""Time for the replays of one condition: a check answers with few where a module is slow."""
PATIENCE = 10.0
log = logging.getLogger("firstdiff")


@task(name="6 replay the module", **UNCACHED)
def replay_module(folder: Path) -> Answer:
    """Runs the module that runs c and d captured, alone."""
    begin(Begun(6, tell("replaying the module alone")))
    answer = replay_check(folder, seconds=SECONDS, patience=PATIENCE)
    log.info("%s", tell("replay: {summary}", summary=summary(answer)))
    return answer
