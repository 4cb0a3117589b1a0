"""The one table of what is put in place of a trainer's own methods while it trains, and whether a trainer has them.

All else is observed by public events (``transformers.TrainerCallback``). A trainer that lacks one of these names, or
takes other parameters there, is of a version that is not known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A method that is wrapped on a trainer, or on an object that it holds.

    Example:
        >>> row = Wrapped("trl", ("GRPOTrainer",), "_generate", ("prompts",), "generation", ("1.16.0",))
        >>> row.misfit("GRPOTrainer", None)
        'GRPOTrainer has no _generate'
    """

    library: str
    """Whose it is."""
    kinds: tuple[str, ...]
    """Classes of that library that have it; a trainer that derives from one of them must have it too."""
    name: str
    parameters: tuple[str, ...]
    """The first parameters behind ``self``: those that are relied on."""
    purpose: str
    tested: tuple[str, ...]
    """Versions of the library that it was tested with."""
    holder: str | None = None
    """The trainer's attribute that has it; None for the trainer itself."""

    def misfit(self, owner: str, method: Callable[..., Any] | None) -> str | None:
        """Why a method cannot be wrapped; None where it can be.

        Args:
            owner: What has it, for people.
            method: The bound method; None where there is none.
        """
        if not callable(method):
            return f"{owner} has no {self.name}"
        try:
            found = list(inspect.signature(method).parameters.values())
        except (TypeError, ValueError):
            return f"{owner}.{self.name} has no signature"
        names: list[str] = []
        for one in found:
            if one.kind is inspect.Parameter.VAR_POSITIONAL:
                return None  # it takes whatever it is given
            if one.kind in _POSITIONAL:
                names.append(one.name)
        if tuple(names[: len(self.parameters)]) == self.parameters:
            return None
        return f"{owner}.{self.name} takes ({', '.join(names)}), not ({', '.join(self.parameters)}, …)"


_LIBRARIES = ("transformers", "trl")
_ROLLOUT = ("GRPOTrainer", "RLOOTrainer")

TABLE = (
    Wrapped("transformers", ("Trainer",), "compute_loss", ("model", "inputs"),
            "begins an update: the batch before it, the loss behind it", ("5.24.0",)),
    Wrapped("transformers", ("Trainer",), "prediction_step", ("model", "inputs"),
            "an evaluation's batch, which is no part of the training", ("5.24.0",)),
    Wrapped("accelerate", ("Trainer",), "clip_grad_norm_", ("parameters", "max_norm"),
            "the norm of the gradients", ("1.16.0",), "accelerator"),
    Wrapped("trl", _ROLLOUT, "_generate_and_score_completions", ("inputs",),
            "the rows of the data set before it, the advantages behind it", ("1.16.0",)),
    Wrapped("trl", _ROLLOUT, "_generate", ("prompts",), "generation, whichever engine does it", ("1.16.0",)),
    Wrapped("trl", _ROLLOUT, "_get_per_token_logps_and_entropies",
            ("model", "input_ids", "attention_mask", "logits_to_keep"),
            "log-probabilities: those of the actor as it generated, of the reference, and in an update", ("1.16.0",)),
    Wrapped("trl", _ROLLOUT, "_calculate_rewards", ("inputs", "prompts"),
            "what the reward functions give", ("1.16.0",)),
)  # fmt: skip
"""Every wrapped name."""


def rows_for(trainer: Any) -> list[Wrapped]:
    """The rows of the table that a trainer's classes are named in.

    Args:
        trainer: A ``transformers.Trainer``.
    """
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(trainer).__mro__}
    from_library = {"accelerate": "transformers"}
    return [
        row for row in TABLE if any((from_library.get(row.library, row.library), one) in kinds for one in row.kinds)
    ]


def misfits(trainer: Any) -> list[str]:
    """What keeps a trainer from being observed by its own stages, one clause each; empty where nothing does.

    Args:
        trainer: A ``transformers.Trainer``.
    """
    found = []
    for row in rows_for(trainer):
        owner = type(trainer).__name__
        held = trainer if row.holder is None else getattr(trainer, row.holder, None)
        problem = row.misfit(owner if row.holder is None else f"{owner}.{row.holder}", getattr(held, row.name, None))
        if problem is not None:
            found.append(f"{problem} ({row.library} {_version(row.library)}; tested with {', '.join(row.tested)})")
    return found


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "of no known version"
