"""Is there room for a check? What it will take, by an earlier one or by what it trains, against what is free."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.config import IntegratedTrainer, Profile, find_profile
from probe.disk.events import trace_bytes
from probe.disk.sizes import show_size
from probe.errors import HistoryError, UsageError
from probe.history import PastCheck, past_checks
from probe.history.start import variant_of
from probe.keys import CONFIGURATIONS
from probe.store import layout

log = logging.getLogger("firstdiff")

LATEST = 5
"""Earlier checks that are looked at; the largest counts."""
MARGIN = 1.2
"""Times what an earlier check took."""
TINY = 1 << 30
"""Free bytes below which a check of unknown size is warned of."""

_TAGS = 12
"""Key-data tensors of a step, each at most (responses, tokens) numbers."""
_NUMBER = 8
"""Bytes of a number, at most."""
_FILES = 2 * 4096
"""Bytes on the disk of a record's two files beside its numbers."""
_DIGEST_LINES = 2 * 400
"""Bytes of a weight's digest, in the index and in its ``.json``."""
_PARAMETERS = 16
"""Parameters of a layer of a transformer, at most."""
_HIDDEN, _INTERMEDIATE = 24, 6
"""Inputs and outputs of a layer's modules, in vectors of each length."""
_BYTES = 4
_SAFETY = 2
"""Times the estimate: micro-batches that are not full, padding, small files."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a check will take on the disk.

    Example:
        >>> Need(None, "nothing says how much").bytes is None
        True
    """

    bytes: int | None
    """None where nothing tells."""
    reason: str
    """Where the number comes from."""


def require_room(folder: Path, name: str, profile: Profile, overrides: Sequence[str] = (), force: bool = False) -> None:
    """Sees to it that a check has room on its disk.

    Args:
        folder: The check's folder; it need not exist.
        name: The profile's name or path.
        profile: The resolved profile.
        overrides: What is set over it.
        force: Whether a lack of room is a warning only.

    Raises:
        UsageError: It will probably not fit.
    """
    folder = folder.absolute()
    need = estimate(folder, name, profile, overrides)
    free = _free(folder)
    if free is None:
        return
    if need.bytes is None:
        if free < TINY:
            log.warning("only %s are free in %s; %s", show_size(free), folder.parent, need.reason)
        return
    if need.bytes <= free:
        return
    taken = f"the check will take about {show_size(need.bytes)} ({need.reason})"
    sentence = f"{folder.parent}: {taken}, and {show_size(free)} are free"
    if not force:
        raise UsageError(f"{sentence}; make room (firstdiff prune), name another folder with --out, or use --force")
    log.warning("%s", sentence)


def estimate(folder: Path, name: str, profile: Profile, overrides: Sequence[str] = ()) -> Need:
    """What a check will take at its peak, before its dumps are compressed.

    The largest of the profile's latest checks tells best, one with the same overrides before others. Without one, an
    integrated trainer's batch and model give a bound.
    """
    earlier = _earlier(folder, name, variant_of(overrides), profile.record.trace)
    if earlier is not None:
        return Need(math.ceil(earlier * MARGIN), f"an earlier check of it took {show_size(earlier)}")
    trainer = profile.trainer
    if isinstance(trainer, IntegratedTrainer) and (bound := _bound(profile, trainer)) is not None:
        return Need(bound, "by its steps, batch and model; none was checked before")
    return Need(None, "how much the check will take is not known, as none of this profile was checked before")


def _earlier(folder: Path, name: str, variant: list[str], traced: bool) -> int | None:
    """Size of the largest of the latest checks of a profile, of those that recorded traces or of those that did not."""
    try:
        checks = past_checks(folder.parent, find_profile(name).stem)
    except HistoryError as error:
        log.warning("what earlier checks took is not known: %s", error)
        return None
    known = [check for check in checks if check.peak_bytes and _was_traced(check) is traced]
    alike = [check for check in known if list(check.variant) == variant] or known
    return max((check.peak_bytes or 0 for check in alike[-LATEST:]), default=None)


def _was_traced(check: PastCheck) -> bool:
    section: Any = check.experiment.get(CONFIGURATIONS, {}).get("record")
    return isinstance(section, dict) and section.get("trace") is True


def _bound(profile: Profile, trainer: IntegratedTrainer) -> int | None:
    """Two runs of all steps and two of one step with layers; None where the model does not say its sizes."""
    config = trainer.config
    sizes = _model_sizes(config.model.path, config.model.config)
    if sizes is None:
        return None
    hidden, intermediate, layers, vocabulary = sizes
    steps = config.megatron_training.train_iters
    responses = config.megatron_training.global_batch_size * config.rl_config.n_samples_per_prompt
    tokens = responses * (config.rl_config.max_prompt_length + config.generate_config.sampling_config.max_tokens)
    micro_batches = responses / min(config.rl_config.actor_forward_micro_batch_size, responses)
    epochs = config.rl_config.epochs
    per_step = _TAGS * epochs * (micro_batches * _FILES + tokens * _NUMBER) + layers * _PARAMETERS * _DIGEST_LINES
    if profile.record.key_data == "off":
        per_step = 0
    activations = tokens * (layers * (_HIDDEN * hidden + _INTERMEDIATE * intermediate) + 2 * vocabulary)
    weights = layers * (4 * hidden * hidden + 3 * hidden * intermediate) + 2 * vocabulary * hidden
    window = _BYTES * (activations + 2 * weights)  # parameters, and their gradients
    ranks = (trainer.nproc_per_node or 1) * trainer.nnodes
    traces = 4 * steps * trace_bytes(config, layers, ranks) if profile.record.trace else 0  # c and d go as far
    return math.ceil(_SAFETY * (2 * per_step * steps + 2 * window) * (1 + (ranks - 1) / 2) + traces)


def _model_sizes(path: str | None, config: dict[str, Any]) -> tuple[int, int, int, int] | None:
    """Hidden and intermediate size, layers, vocabulary."""
    if path is not None:
        try:
            content = layout.read_json(Path(path) / "config.json", 1 << 24)
        except (OSError, ValueError):
            return None
        config = content if isinstance(content, dict) else {}
    found = [config.get(key) for key in ("hidden_size", "intermediate_size", "num_hidden_layers")]
    vocabulary = config.get("vocab_size", 512)
    numbers = [value for value in (*found, vocabulary) if isinstance(value, int) and value > 0]
    return (numbers[0], numbers[1], numbers[2], numbers[3]) if len(numbers) == 4 else None


def _free(folder: Path) -> int | None:
    """Free bytes on the disk of a folder that need not exist; None where nobody tells."""
    for place in (folder, *folder.parents):
        try:
            usage = shutil.disk_usage(place)
            return usage.free if usage.total else None  # no disk at all, as /proc
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None
