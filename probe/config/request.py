"""What one asks of a check in a form: flat, typed parameters over a profile.

The fields are those of the deployment's form, and of ``determinism_check``. Each that is given overrides keys of the
profile; ``resolve`` makes the profile of them, the same one that ``firstdiff check PROFILE --set key=value`` makes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, WithJsonSchema

from probe.config.base import StrictModel, first_problem
from probe.config.loading import SHIPPED_PROFILES, load_profile
from probe.config.profile import Profile
from probe.errors import ConfigError, UsageError

AS_IN_PROFILE: Literal["as in the profile"] = "as in the profile"
"""The choice that overrides nothing."""
NOT_GIVEN = -1
"""The number that overrides nothing: Prefect's page sends every field, and takes no empty one for a number."""
SOURCE = "parameters"
"""What an error names as the place of a mistake in a form."""
_MOST_SEED = 2**32 - 1
_MOST_SECONDS = 30 * 86_400

Algorithm = Literal["as in the profile", "grpo", "ppo", "dapo"]
Device = Literal["as in the profile", "auto", "npu", "cuda", "cpu"]
KeyDataChoice = Literal["as in the profile", "full", "digests", "off"]
OnErrorChoice = Literal["as in the profile", "raise", "continue"]
Switch = Literal["as in the profile", "on", "off"]
Cublas = Literal["as in the profile", ":4096:8", ":16:8", "unset"]
Hccl = Literal["as in the profile", "true", "strict", "false", "unset"]
OneOrZero = Literal["as in the profile", "1", "0", "unset"]

OptionalInteger = Annotated[int | None, WithJsonSchema({"type": "integer"})]
"""In a form: a field for a whole number; -1 gives none."""
OptionalNumber = Annotated[float | None, WithJsonSchema({"type": "number"})]
"""In a form: a field for a number; -1 gives none."""
OptionalText = Annotated[str | None, WithJsonSchema({"type": "string"})]
"""In a form: a field for text that may stay empty."""
Lines = Annotated[str | list[str] | None, WithJsonSchema({"type": "string"})]
"""In a form: text of several lines. A list has one entry a line."""


def profile_names() -> list[str]:
    """The profiles that a name finds here: those in ``./profiles``, then those that ship with the package."""
    found: dict[str, None] = {}
    for folder in (Path.cwd() / "profiles", SHIPPED_PROFILES):
        found.update(dict.fromkeys(sorted(file.stem for file in folder.glob("*.yaml"))))
    return list(found)


def _profile_choices() -> dict[str, Any]:
    path = {"type": "string", "title": "a path"}
    names = profile_names()
    listed = {"type": "string", "enum": names, "title": "one of those present"}
    return {"anyOf": [listed, path] if names else [path]}


ProfileName = Annotated[str, WithJsonSchema(_profile_choices())]
"""In a form: a list of the profiles present, or a path."""


class Request(StrictModel):
    """What one asks of a check.

    Example:
        >>> Request(profile="demo", steps=8).changes()
        {'check.steps': ('steps', '8')}
    """

    profile: str = Field(min_length=1)
    """A profile's name, or the path of a file."""
    steps: int | None = Field(default=None, ge=1, le=1_000_000)
    """Training steps."""
    algorithm: Algorithm = AS_IN_PROFILE
    """The algorithm, with the advantage estimator and the switches that belong to it."""
    device: Device = AS_IN_PROFILE
    """Where to train."""
    nproc_per_node: int | None = Field(default=None, ge=1, le=4096)
    """Processes that torchrun starts."""
    seed: int | None = Field(default=None, ge=0, le=_MOST_SEED)
    """Seed of the training."""
    sampling_seed: int | None = Field(default=None, ge=0, le=_MOST_SEED)
    """Seed of the rollout's sampling."""
    deterministic_algorithms: Switch = AS_IN_PROFILE
    """torch's deterministic algorithms."""
    cublas_workspace_config: Cublas = AS_IN_PROFILE
    """CUBLAS_WORKSPACE_CONFIG."""
    hccl_deterministic: Hccl = AS_IN_PROFILE
    """HCCL_DETERMINISTIC."""
    lccl_deterministic: OneOrZero = AS_IN_PROFILE
    """LCCL_DETERMINISTIC."""
    atb_matmul_shuffle_k_enable: OneOrZero = AS_IN_PROFILE
    """ATB_MATMUL_SHUFFLE_K_ENABLE."""
    close_matmul_k_shift: OneOrZero = AS_IN_PROFILE
    """CLOSE_MATMUL_K_SHIFT."""
    python_hash_seed: int | None = Field(default=None, ge=0, le=_MOST_SEED)
    """PYTHONHASHSEED."""
    num_threads: int | None = Field(default=None, ge=1, le=4096)
    """Threads of one CPU operation."""
    key_data: KeyDataChoice = AS_IN_PROFILE
    """What is recorded of key data."""
    trace: Switch = AS_IN_PROFILE
    """Whether every event is recorded in execution order."""
    on_error: OnErrorChoice = AS_IN_PROFILE
    """What an error inside the probe does."""
    time_limit: float | None = Field(default=None, gt=0, le=_MOST_SECONDS, allow_inf_nan=False)
    """Longest time of one run, in seconds."""
    stall_seconds: float | None = Field(default=None, gt=0, le=_MOST_SECONDS, allow_inf_nan=False)
    """Longest time without progress, in seconds."""
    overrides: list[str] = Field(default_factory=list)
    """Further ``dotted.key=value`` entries; they are applied last."""

    def changes(self) -> dict[str, tuple[str, str]]:
        """The keys of the profile that the named fields override: each with its field, and its value as YAML."""
        found: dict[str, tuple[str, str]] = {}
        for field, keys in _KEYS.items():
            value = getattr(self, field)
            if value is None or value == AS_IN_PROFILE:
                continue
            if field in _SWITCHES:
                value = value == "on"
            for key in keys:
                found[key] = (field, _yaml(value))
        if self.algorithm != AS_IN_PROFILE:
            found.update({key: ("algorithm", _yaml(value)) for key, value in _ALGORITHMS[self.algorithm].items()})
        return found

    def entries(self) -> list[str]:
        """Everything that is set over the profile, as ``--set`` takes it."""
        return [*(f"{key}={text}" for key, (_, text) in self.changes().items()), *self.overrides]


_TRAINING = "trainer.config."
_KEYS: dict[str, tuple[str, ...]] = {
    "steps": ("check.steps",),
    "device": (f"{_TRAINING}device",),
    "nproc_per_node": ("trainer.nproc_per_node",),
    "seed": (f"{_TRAINING}megatron_training.seed",),
    "sampling_seed": (f"{_TRAINING}generate_config.sampling_config.seed",),
    "deterministic_algorithms": ("determinism.deterministic_algorithms",),
    "cublas_workspace_config": ("determinism.cublas_workspace_config",),
    "hccl_deterministic": ("determinism.hccl_deterministic",),
    "lccl_deterministic": ("determinism.lccl_deterministic",),
    "atb_matmul_shuffle_k_enable": ("determinism.atb_matmul_shuffle_k_enable",),
    "close_matmul_k_shift": ("determinism.close_matmul_k_shift",),
    "python_hash_seed": ("determinism.python_hash_seed",),
    "num_threads": ("determinism.num_threads",),
    "key_data": ("record.key_data",),
    "trace": ("record.trace",),
    "on_error": ("record.on_error",),
    "time_limit": ("trainer.time_limit",),
    "stall_seconds": ("trainer.stall_seconds",),
}
"""The keys of a profile that a field sets."""
_SWITCHES = ("deterministic_algorithms", "trace")
"""Fields that are on or off."""

_DAPO = ("clip_higher_enable", "token_level_loss", "filter_groups_enable")
_ALGORITHMS: dict[str, dict[str, Any]] = {
    name: {
        f"{_TRAINING}megatron_training.stage": f"ray_{name}",
        f"{_TRAINING}rl_config.adv_estimator": "gae" if name == "ppo" else "group_norm",
        **{f"{_TRAINING}rl_config.{switch}": name == "dapo" for switch in _DAPO},
    }
    for name in ("grpo", "ppo", "dapo")
}
"""What makes the algorithm of the integrated trainer."""


def parse_request(values: dict[str, Any]) -> Request:
    """Checks the values of a form.

    Args:
        values: By the names of the fields; ``overrides`` as lines of text or a list of them. What is None, or a
            number of -1, is not given.

    Raises:
        ConfigError: A value is wrong; names its field.
    """
    given = {name: value for name, value in values.items() if value is not None and value != NOT_GIVEN}
    given["overrides"] = override_lines(given.get("overrides"))
    try:
        return Request.model_validate(given)
    except ValidationError as error:
        raise first_problem(error, SOURCE, Request) from error


def resolve(request: Request) -> Profile:
    """The profile with everything that was asked for.

    Raises:
        UsageError: There is no such profile, or it does not take a value; names the field.
    """
    try:
        kind = load_profile(request.profile).trainer.kind
    except ConfigError:
        kind = None  # the overrides may mend it
    except UsageError as error:
        raise ConfigError(SOURCE, "profile", str(error)) from error
    changes = request.changes()
    for key, (field, _) in changes.items():
        if kind not in (None, "integrated") and key.startswith(_TRAINING):
            problem = f"the profile's trainer is a {kind}, which has its own settings; leave this field as it is"
            raise ConfigError(SOURCE, field, problem)
    try:
        return load_profile(request.profile, request.entries())
    except ConfigError as error:
        raise _of_field(error, request, changes) from error


def override_lines(text: str | list[str] | None) -> list[str]:
    """The entries of a text with one ``key=value`` a line; empty lines and those that begin with # do not count.

    Raises:
        ConfigError: A line is no ``key=value``.
    """
    lines = text.splitlines() if isinstance(text, str) else text
    if lines is None:
        return []
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ConfigError(SOURCE, "overrides", f"must be lines of key=value, not {text!r:.60}")
    found = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for line in found:
        key, equals, _ = line.partition("=")
        if not equals or not key.strip():
            raise ConfigError(SOURCE, "overrides", f"each line must be key=value, not {line.strip()!r:.60}")
    return [line.strip() if isinstance(text, str) else line for line in found]


def _of_field(error: ConfigError, request: Request, changes: dict[str, tuple[str, str]]) -> ConfigError:
    """The same error, with the field of the form that holds the mistake, where it is one."""
    wrong = f"{error.key}."
    for line in request.overrides:
        key = line.partition("=")[0].strip()
        if wrong.startswith(f"{key}.") or f"{key}.".startswith(wrong):
            return ConfigError(SOURCE, "overrides", f"{error.key}: {error.problem}")
    for key, (field, _) in changes.items():
        if wrong.startswith(f"{key}."):
            return ConfigError(SOURCE, field, error.problem)
    named = _named_in(error.problem, changes)
    return error if named is None else ConfigError(SOURCE, named, error.problem)


def _named_in(problem: str, changes: dict[str, tuple[str, str]]) -> str | None:
    """The field whose key a sentence names: a rule over several keys belongs to none of them."""
    for key, (field, _) in changes.items():
        if key.removeprefix(_TRAINING) in problem or key.rpartition(".")[2] in problem:
            return field
    return None


def _yaml(value: Any) -> str:
    """A value as YAML reads it back."""
    if value == "unset":
        return "null"
    return json.dumps(value)
