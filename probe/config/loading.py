"""Reading YAML into configuration models, with errors that name the file and the key; writing it; the JSON schema."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from probe.config.base import StrictModel, first_problem, problem_of_text
from probe.config.mindspeed import MindSpeedRLTrainer
from probe.config.profile import Profile, TrainerRunConfig
from probe.config.training import TrainingConfig
from probe.config.variant import apply_b, check_allowed, get, plain, put
from probe.errors import ConfigError, UsageError
from probe.masking import is_secret

_PATHS = (("model", "path"), *(("megatron_training", key) for key in ("data_path", "save", "load")))
"""Keys of a trainer file that name files, relative to it."""

Model = TypeVar("Model", bound=StrictModel)

_LONGEST_NAME = 250
"""Bytes of a file's name: file systems take 255, and ``.yaml`` is added to a profile's."""

SHIPPED_PROFILES = Path(__file__).resolve().parent.parent.parent / "profiles"
"""The profiles that come with the package: the folder beside the package ``probe``, installed or not."""


class _Loader(yaml.SafeLoader):
    """YAML 1.1, but ``1e-6`` is a number and a key may not stand twice."""


class _Dumper(yaml.SafeDumper):
    """Writes what ``_Loader`` reads back: the string ``1e-6`` in quotes."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


def _mapping_with_distinct_keys(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a single value", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_with_distinct_keys)


def find_profile(name: str) -> Path:
    """The file of a profile: a path, or a name in ``./profiles`` or among those that ship with the package.

    Raises:
        UsageError: There is none; the message lists the names that exist.
    """
    if problem := problem_of_text(name):
        raise UsageError(f"{name!r:.60}: no such profile; the name {problem}")
    path = Path(name)
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise UsageError(f"{name[:60]}…: no such profile; no file has so long a name")
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"{name}: no such profile file") from None
        except OSError as error:
            raise UsageError(f"{name}: this profile cannot be read ({error.strerror})") from error
        if path.is_file():
            return path.resolve()
        raise UsageError(f"{name}: is no profile file")
    folders = [Path.cwd() / "profiles", SHIPPED_PROFILES]
    for folder in folders:
        candidate = folder / f"{name}.yaml"
        if candidate.is_file():
            return candidate.resolve()
    known = sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})
    raise UsageError(
        f"{name}: no such profile; there are {', '.join(known) or 'none'}, or give the path of a .yaml file"
    )


def load_profile(name: str, overrides: list[str] | None = None) -> Profile:
    """Reads a profile, applies ``--set`` overrides, and resolves every path in it.

    Args:
        name: A path, or the name of a profile.
        overrides: ``dotted.key=value`` entries; the value is read as YAML.

    Raises:
        UsageError: There is no such profile.
        ConfigError: A key is unknown, a value has the wrong type, or the file is not YAML.
    """
    path = find_profile(name)
    raw = _read_mapping(path)
    base = path.parent
    for override in overrides or []:
        if override.startswith("trainer.config."):
            _inline_trainer_file(raw, base)
        _apply(raw, override)
    profile = _resolved(raw, base, str(path))
    other = profile
    if profile.check.b:
        source = f"{path}: check.b"
        other = _resolved(apply_b(plain(profile), profile.check.b, str(path)), base, source)
        values = plain(other)  # with paths that no longer depend on the profile's folder
        changes = {key: get(values, key) for key in profile.check.b}
        profile = profile.model_copy(update={"check": profile.check.model_copy(update={"b": changes})})
    check_allowed(profile, other, str(path))
    return profile


def _resolved(raw: dict[str, Any], base: Path, source: str) -> Profile:
    """A profile from its mapping, which it changes: with the trainer file in place and every path absolute."""
    _inline_trainer_file(raw, base)
    trainer = raw.get("trainer")
    if isinstance(trainer, dict):
        if isinstance(trainer.get("config"), dict):
            _resolve_paths(trainer["config"], base)
        for key in ("cwd", "local_dump", "repo"):
            if problem := problem_of_text(str(trainer.get(key, ""))):
                raise ConfigError(source, f"trainer.{key}", problem)
        if isinstance(trainer.get("local_dump"), str):
            trainer["local_dump"] = os.path.realpath(base / trainer["local_dump"])
        if trainer.get("kind") in ("command", "script", "verl"):
            trainer["cwd"] = os.path.realpath(base / str(trainer.get("cwd", ".")))
        if isinstance(trainer.get("repo"), str) and trainer["repo"]:
            trainer["repo"] = os.path.realpath(base / trainer["repo"])
    profile = _follow_steps(_validate(Profile, raw, source))
    if profile.trainer.kind == "integrated":
        _require_files(profile.trainer.config, source, "trainer.config.")
        _require_reachable(profile.trainer.config, source, "trainer.config.")
    elif not Path(profile.trainer.cwd).is_dir():
        key = "repo" if isinstance(profile.trainer, MindSpeedRLTrainer) else "cwd"
        raise ConfigError(source, f"trainer.{key}", f"no such folder: {profile.trainer.cwd}")
    return profile


def load_trainer_config(file: Path) -> TrainerRunConfig:
    """Reads a trainer file, as ``python -m probe.trainer --config`` takes it.

    Raises:
        ConfigError: As for ``load_profile``.
    """
    raw = _resolve_paths(_read_mapping(file), file.resolve().parent)
    config = _validate(TrainerRunConfig, raw, str(file))
    _require_files(config, str(file), "")
    if config.msprobe_config.msprobe:
        _require_reachable(config, str(file), "")
    return config


def to_yaml(model: StrictModel, exclude: dict[str, Any] | None = None) -> str:
    """A configuration as YAML that reads back as the same model.

    Args:
        model: The configuration.
        exclude: Keys to leave out, as pydantic's ``model_dump`` takes them.
    """
    return mapping_yaml(model.model_dump(mode="json", exclude=exclude))


def mapping_yaml(values: dict[str, Any]) -> str:
    """A configuration's mapping as YAML."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def profile_schema() -> dict[str, Any]:
    """The JSON schema of profiles, for editors: ``profiles/*.yaml`` name it in their first line."""
    schema = Profile.model_json_schema()
    config = schema["$defs"]["IntegratedTrainer"]["properties"]["config"]
    reference = config.pop("$ref")
    config["anyOf"] = [{"$ref": reference}, {"type": "string"}]
    keep = schema["$defs"]["Check"]["properties"]["keep"]
    keep["anyOf"] = [{"$ref": keep.pop("$ref")}, {"const": "all"}]
    determinism = schema["properties"]["determinism"]
    determinism["anyOf"] = [{"$ref": determinism.pop("$ref")}, {"const": "enforce"}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def read_yaml(path: Path) -> dict[str, Any]:
    """The content of a YAML file, a mapping, as it stands there.

    Raises:
        ConfigError: It cannot be read, or holds something else.
    """
    return _read_mapping(path)


def _read_mapping(path: Path, key: str = "") -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(str(path), key, "no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), key, f"cannot be read ({error})") from error
    try:
        raw = yaml.load(text, Loader=_Loader)  # noqa: S506  (_Loader is a SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}" if mark else ""
        raise ConfigError(str(path), where, f"not valid YAML ({error.problem})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date that there is not, endless digits, brackets
        raise ConfigError(str(path), "", f"not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(raw, dict):
        raise ConfigError(str(path), key, f"must be a mapping of sections, not {type(raw).__name__}")
    return raw


def _inline_trainer_file(raw: dict[str, Any], base: Path) -> None:
    """Puts the trainer file that a profile names in its place; mistakes in it are its own."""
    trainer = raw.get("trainer")
    named = isinstance(trainer, dict) and trainer.get("kind") == "mindspeed_rl"  # by hydra, in its checkout
    if isinstance(trainer, dict) and isinstance(trainer.get("config"), str) and not named:
        file = base / trainer["config"]
        config = _resolve_paths(_read_mapping(file, "trainer.config"), file.parent)
        _validate(TrainingConfig, config, str(file))
        trainer["config"] = config


def _resolve_paths(config: dict[str, Any], base: Path) -> dict[str, Any]:
    """Makes the paths of a trainer file absolute, in place: they are relative to the file that names them."""
    for section, key in _PATHS:
        values = config.get(section)
        if isinstance(values, dict) and isinstance(values.get(key), str) and not problem_of_text(values[key]):
            values[key] = os.path.realpath(base / values[key])  # of links that lead in a circle, too
    return config


def _require_reachable(config: TrainingConfig, source: str, prefix: str) -> None:
    """Refuses layer dumps of steps and tokens that never come, before a training that would be for nothing."""
    section, last = config.msprobe_config, config.megatron_training.train_iters - 1
    if section.chosen_stages and section.step_start > last:
        problem = f"the last step is {last} (train_iters {last + 1}), no layers would be dumped"
        raise ConfigError(source, f"{prefix}msprobe_config.step_start", problem)
    tokens = config.generate_config.sampling_config.max_tokens
    if section.actor_infer_dump and section.token_range_start >= tokens:
        problem = f"at most {tokens} tokens are generated (sampling_config.max_tokens), none would be dumped"
        raise ConfigError(source, f"{prefix}msprobe_config.token_range_start", problem)


def _require_files(config: TrainingConfig, source: str, prefix: str) -> None:
    model, data = config.model.path, config.megatron_training.data_path
    if model is not None and not Path(model).is_dir():
        raise ConfigError(source, f"{prefix}model.path", f"no such folder: {model}")
    if (load := config.megatron_training.load) is not None and not Path(load).is_dir():
        raise ConfigError(source, f"{prefix}megatron_training.load", f"no such folder: {load}")
    if data is not None and not Path(data).is_file():
        raise ConfigError(source, f"{prefix}megatron_training.data_path", f"no such file: {data}")


def read_override(override: str) -> tuple[str, Any]:
    """The key and the value of a ``--set`` entry.

    Raises:
        ConfigError: It is none.
    """
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError("--set", override, "must be dotted.key=value")
    try:
        return key.strip(), yaml.load(text, Loader=_Loader)  # noqa: S506  (_Loader is a SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        shown = "what follows" if is_secret(key.rpartition(".")[2]) else repr(text)
        raise ConfigError("--set", key, f"{shown} is not a YAML value") from error


def _apply(raw: dict[str, Any], override: str) -> None:
    key, value = read_override(override)
    if key.startswith("determinism.") and raw.get("determinism") == "enforce":
        raw["determinism"] = {"enforce": True}  # what the word stands for
    put(raw, key, value, "--set")


def _validate(model: type[Model], raw: dict[str, Any], source: str) -> Model:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise first_problem(error, source, model) from error


def _follow_steps(profile: Profile) -> Profile:
    """``check.steps`` is the length of an integrated run: one place holds it, and the trainer trains no further."""
    trainer = profile.trainer
    if trainer.kind != "integrated" or profile.check.steps is None:
        return profile
    training = trainer.config.megatron_training.model_copy(update={"train_iters": profile.check.steps})
    config = trainer.config.model_copy(update={"megatron_training": training})
    return profile.model_copy(update={"trainer": trainer.model_copy(update={"config": config})})
