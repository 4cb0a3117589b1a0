"""TRL's trainers that generate (GRPO, RLOO), by their own stages.

Generation is wrapped as a whole, whichever engine does it: of vLLM, what goes in and what comes out is seen. With PEFT
the reference is the actor with its adapter turned off.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from probe.adapters.training import Training
from probe.collect.ranks import unwrapped

GENERATION = "actor_generate_sequences"
OLD = "actor_compute_log_prob"
REFERENCE = "reference_compute_log_prob"
_REWARD = "reward"
_MADE = ("prompts", "tokens", "tool_mask", "completions", "log_probs")
"""What the parts of ``_generate``'s result are, in order."""
_NO_TOKEN = -1
_NAME = re.compile(r"[^A-Za-z0-9_]+")


class Rollouts(Training):
    """Observes a trainer that generates what it learns from. See ``Training``."""

    def begin(self) -> None:
        """The trainer is about to train."""
        super().begin()
        self.wrap(self.trainer, "_generate_and_score_completions", self._rollout)
        self.wrap(self.trainer, "_generate", self._generation)
        self.wrap(self.trainer, "_get_per_token_logps_and_entropies", self._log_probs)
        self.wrap(self.trainer, "_calculate_rewards", self._rewards)

    def parts_of_loss(self) -> dict[str, Any]:
        """The divergence from the reference, which is among what the trainer logs."""
        logged = getattr(self.trainer, "_metrics", None)
        kept = logged.get("train", {}).get("kl") if isinstance(logged, dict) else None
        return {"kl_loss": kept[-1]} if kept and getattr(self.trainer, "beta", 0.0) else {}

    def _rollout(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def _generate_and_score_completions(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self.idle:
                return run(inputs, *args, **kwargs)
            self.close_update()
            number = self.count(GENERATION)
            self.tell(lambda: self.save({"prompts": texts(inputs)}, micro_step=number))
            result = run(inputs, *args, **kwargs)
            advantages = result.get("advantages") if isinstance(result, dict) else None
            if isinstance(advantages, torch.Tensor):
                self.save({"advantages": advantages}, micro_step=number)
            return result

        return _generate_and_score_completions

    def _generation(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def _generate(prompts: Any, *args: Any, **kwargs: Any) -> Any:
            if self.idle:
                return run(prompts, *args, **kwargs)
            with self.stage(GENERATION):
                result = run(prompts, *args, **kwargs)
                self.tell(lambda: self.save({"responses": _generated(result)}))
            return result

        return _generate

    def _log_probs(self, run: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(run)

        def _get_per_token_logps_and_entropies(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self.idle:
                return run(model, *args, **kwargs)
            given = signature.bind(model, *args, **kwargs).arguments
            if self.updating:
                result = run(model, *args, **kwargs)
                self.tell(self._save_log_probs, "log_prob", result, given)
                return result
            reference = self.tell(self._is_reference, model)
            with self.stage(REFERENCE if reference else OLD):
                result = run(model, *args, **kwargs)
                self.tell(self._save_log_probs, "ref_log_prob" if reference else "old_log_prob", result, given)
            return result

        return _get_per_token_logps_and_entropies

    def _save_log_probs(self, tag: str, result: Any, given: dict[str, Any]) -> None:
        log_probs = result[0] if isinstance(result, tuple) else result  # float [B, T]
        mask = given["attention_mask"][:, -given["logits_to_keep"] :]
        self.save({tag: log_probs}, mask=mask)

    def _is_reference(self, model: Any) -> bool:
        """Whether log-probabilities are those of the reference: another model, or an adapter's actor without it."""
        own = getattr(self.trainer, "ref_model", None)
        if own is not None:
            return unwrapped(model) is unwrapped(own)
        plain = unwrapped(model)
        if getattr(plain, "active_adapter", None) == "ref":  # TRL's name for the copy of an adapter that it began with
            return True
        return any(getattr(module, "disable_adapters", False) is True for module in plain.modules())

    def _rewards(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def _calculate_rewards(inputs: Any, prompts: Any, *args: Any, **kwargs: Any) -> Any:
            if self.idle:
                return run(inputs, prompts, *args, **kwargs)
            number = max(self.count(GENERATION) - 1, 0)
            with self._scoring():
                result = run(inputs, prompts, *args, **kwargs)
            self.tell(lambda: self.save({"rewards": self._by_function(result, len(prompts))}, micro_step=number))
            return result

        return _calculate_rewards

    @contextmanager
    def _scoring(self) -> Iterator[None]:
        """A stage for reward models, where there are any."""
        if _REWARD not in self.roles:
            yield
            return
        with self.stage(_REWARD):
            yield

    def _by_function(self, rewards: torch.Tensor, rows: int) -> dict[str, torch.Tensor]:
        """This rank's part of the rewards of all, float32 [B, F], by reward function."""
        first = self.trainer.accelerator.process_index * rows
        own = rewards[first : first + rows]
        names = [_NAME.sub("_", str(name)) for name in getattr(self.trainer, "reward_func_names", ())]
        if len(set(names)) != own.shape[1]:
            names = [f"function{number}" for number in range(own.shape[1])]
        return {name: own[:, column] for column, name in enumerate(names)}


def texts(rows: Sequence[Any]) -> torch.Tensor:
    """Rows of a data set as UTF-8, uint8 [B, longest], with zeros behind the shorter ones: rows that can be compared.

    Example:
        >>> texts([{"prompt": "1 + 1"}]).shape
        torch.Size([1, 19])
    """
    encoded = [torch.tensor(list(_text(row).encode(errors="surrogatepass")), dtype=torch.uint8) for row in rows]
    if not encoded:
        return torch.empty(0, 0, dtype=torch.uint8)
    return torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)


def _text(row: Any) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, sort_keys=True, default=lambda value: type(value).__name__)
    except (TypeError, ValueError):  # keys of several types, a circle
        return type(row).__name__


def _generated(result: Any) -> dict[str, Any]:
    """What can be recorded of the result of ``_generate``: token ids, and what else the engine gave."""
    parts = result if isinstance(result, tuple) else (result,)
    named = dict(zip(_MADE, parts, strict=False))
    return {name: value for name, part in named.items() if (value := _rectangle(part)) is not None}


def _rectangle(part: Any) -> torch.Tensor | None:
    """Rows of numbers of several lengths as one tensor [B, longest]; None of what is something else."""
    if isinstance(part, torch.Tensor):
        return part
    if not isinstance(part, list) or not part or not all(isinstance(row, list) for row in part):
        return None
    numbers = [number for row in part for number in row]
    if not all(isinstance(number, int | float) or number is None for number in numbers):
        return None
    whole = all(isinstance(number, int) for number in numbers)
    kind, missing = (torch.int64, _NO_TOKEN) if whole else (torch.float64, float("nan"))
    rows = [torch.tensor([missing if one is None else one for one in row], dtype=kind) for row in part]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=missing)
