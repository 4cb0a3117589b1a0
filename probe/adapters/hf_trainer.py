"""``transformers.Trainer``, and TRL's trainers, which derive from it: with no edit, or by ``probe.instrument``.

With no edit, ``train`` of that class is wrapped when a script has imported it; what any script's adapter observes gives
way for as long as such a trainer trains, and goes on behind it. A trainer of a version that is not known is observed as
any script, which is said.
"""

from __future__ import annotations

import functools
import os
import sys
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from probe.adapters import Host
from probe.adapters.bootstrap import SEEN, SPEC, leave_word
from probe.adapters.wrapped import misfits, rows_for

if TYPE_CHECKING:
    from probe.adapters.training import Training
    from probe.collect import Probe
    from probe.types import RunSpec

_Report = Callable[[str, str], None]


def install(host: Host) -> None:
    """Begins to look out for trainers: ``transformers.trainer`` has just been imported.

    Args:
        host: Where this process's adapters are at home.
    """
    kind = sys.modules["transformers.trainer"].Trainer
    run = kind.train

    @functools.wraps(run)
    def train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        observer = host.observer
        if observer is None or observer.lent_to is not None:
            return run(trainer, *args, **kwargs)
        if found := misfits(trainer):
            _say(host.report, trainer, found)
            return run(trainer, *args, **kwargs)
        training = _training_of(trainer, host.problem)
        lent = observer.lend(training)
        if lent is None:
            return run(trainer, *args, **kwargs)
        probe, spec = lent
        try:
            return training.observe(probe, spec, functools.partial(run, trainer, *args, **kwargs))
        finally:
            observer.take_back(training.steps)

    kind.train = train


def instrument(trainer: Any, probe: Probe | None = None) -> Probe:
    """Has a ``transformers.Trainer``, or one of TRL's, observed by its own stages whenever it trains.

    Outside a check nothing happens.

    Args:
        trainer: The trainer, before ``train()``.
        probe: One that the script has opened already, as for another trainer; by default one is opened.

    Returns:
        The probe.

    Raises:
        UsageError: What the check asks for cannot be read.
        DumpError: The dump folder is not empty or cannot be made.

    Example:
        >>> from probe import instrument
        >>> instrument(object()).active
        False
    """
    from probe.collect import Probe
    from probe.collect.spec import spec_from_env

    spec = spec_from_env()
    if spec is None:
        return Probe.from_env() if probe is None else probe
    if found := misfits(trainer):
        _say(_leave_word, trainer, found)
        return _observed_as_any_script() if probe is None else probe
    opened = Probe.from_env() if probe is None else probe
    if opened.active:
        trainer.train = _instrumented(trainer, opened, spec)
    return opened


def _instrumented(trainer: Any, probe: Probe, spec: RunSpec) -> Callable[..., Any]:
    run = trainer.train

    @functools.wraps(run)
    def train(*args: Any, **kwargs: Any) -> Any:
        if probe.finished:
            return run(*args, **kwargs)
        return _training_of(trainer, _problem).observe(probe, spec, functools.partial(run, *args, **kwargs))

    return train


def _training_of(trainer: Any, problem: Callable[[str], None]) -> Training:
    """What observes a trainer: by TRL's stages where it has them."""
    if any(row.library == "trl" for row in rows_for(trainer)):
        from probe.adapters.trl import Rollouts

        return Rollouts(trainer, problem)
    from probe.adapters.training import Training

    return Training(trainer, problem)


# ---- versions that are not known, and words for whoever started the script ----


def _say(report: _Report, trainer: Any, found: list[str]) -> None:
    """Says once, in the trainer's output and in what the check says, why a trainer is not observed by its stages."""
    text = f"{type(trainer).__name__} is not one that is known, and is observed as any script: {'; '.join(found)}"
    sys.stderr.write(f"firstdiff: {text}\n")
    report(f"note-{zlib.crc32(text.encode())}", text)


def _leave_word(what: str, text: str) -> None:
    leave_word(os.path.join(os.path.dirname(os.environ[SPEC]), SEEN), what, text)


def _problem(text: str) -> None:
    sys.stderr.write(f"firstdiff: {text}\n")
    _leave_word(f"problem-{os.getpid()}-{zlib.crc32(text.encode())}", text)


class _Alone:
    """A home for the adapter of any script, in a process that none was started in."""

    def __init__(self) -> None:
        self.observer: Any = None

    def taken_over(self) -> Any:
        """See ``Host``."""
        observer, self.observer = self.observer, None
        return None if observer is None else observer.step_back()

    def report(self, what: str, text: str = "") -> None:
        """See ``Host``."""
        _leave_word(what, text)

    def problem(self, text: str) -> None:
        """See ``Host``."""
        _problem(text)


def _observed_as_any_script() -> Probe:
    """Has this process observed as any script.

    Returns:
        The open probe; an inert one where it could not be opened, which was told.
    """
    from probe.adapters import script
    from probe.collect import Probe

    host: Any = next((one for one in sys.meta_path if getattr(one, "observer", None) is not None), None)
    if host is None:
        host = _Alone()
        script.install(host)
    lent = host.observer.lend(host)
    host.observer.take_back(0)
    return Probe() if lent is None else lent[0]
