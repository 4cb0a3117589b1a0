"""Prompts: arithmetic questions made from the seed, or the lines of a JSONL file.

A step's batch depends on the seed and the step alone, so that a run can go on from any step.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from probe.config import MegatronTraining
from probe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and its answer.

    Example:
        >>> Question("3+4=", "7").answer
        '7'
    """

    prompt: str
    answer: str


class Questions(Protocol):
    """Where prompts come from."""

    def batch(self, step: int) -> list[Question]:
        """The questions of a step."""
        ...


class Arithmetic:
    """Sums of two one-digit numbers.

    Args:
        seed: Of the questions.
        batch_size: Questions per step.
    """

    def __init__(self, seed: int, batch_size: int) -> None:
        self._seed = seed
        self._batch_size = batch_size

    def batch(self, step: int) -> list[Question]:
        """The questions of a step."""
        source = random.Random(f"{self._seed}/{step}")
        pairs = [(source.randrange(10), source.randrange(10)) for _ in range(self._batch_size)]
        return [Question(f"{left}+{right}=", str(left + right)) for left, right in pairs]


class JsonLines:
    """The lines of a file, each with ``prompt`` and ``answer``, again from the start when they run out.

    Args:
        file: UTF-8, one JSON object a line.
        batch_size: Questions per step.
        shuffle_seed: Seed of a new order in each pass; None keeps the order of the lines.

    Raises:
        ConfigError: A line is not such an object, or there are none.
    """

    def __init__(self, file: Path, batch_size: int, shuffle_seed: int | None) -> None:
        self._questions = _read_questions(file)
        self._batch_size = batch_size
        self._shuffle_seed = shuffle_seed

    def batch(self, step: int) -> list[Question]:
        """The questions of a step."""
        first = step * self._batch_size
        return [self._at(position) for position in range(first, first + self._batch_size)]

    def _at(self, position: int) -> Question:
        epoch, index = divmod(position, len(self._questions))
        if self._shuffle_seed is not None:
            order = list(range(len(self._questions)))
            random.Random(f"{self._shuffle_seed}/{epoch}").shuffle(order)
            index = order[index]
        return self._questions[index]


def _read_questions(file: Path) -> list[Question]:
    key = "megatron_training.data_path"
    questions = []
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # not splitlines: JSON may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(file), key, f"cannot be read ({error})") from error
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip():
                entry = json.loads(line)
                questions.append(Question(_text(entry["prompt"]), _text(entry["answer"])))
        except (ValueError, KeyError, TypeError) as error:
            problem = f"line {number} is not an object with prompt and answer"
            raise ConfigError(str(file), key, problem) from error
    if not questions:
        raise ConfigError(str(file), key, "holds no questions")
    return questions


def _text(value: object) -> str:
    if not isinstance(value, str | int | float):
        raise TypeError(f"{value!r} is no text")
    return str(value)


def load_questions(config: MegatronTraining) -> Questions:
    """The questions that a configuration names."""
    if config.data_path is None:
        return Arithmetic(config.seed, config.global_batch_size)
    shuffle_seed = None if config.no_shuffle else config.seed
    return JsonLines(Path(config.data_path), config.global_batch_size, shuffle_seed)
