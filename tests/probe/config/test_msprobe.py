"""The ``msprobe_config`` section is the seed's: names, types, defaults, and what each key turns on."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from probe.config import MsprobeConfig

SEED: dict[str, bool | int | str] = {  # MindSpeed-RL, docs/features/msprobe.md, in its order
    "msprobe": False,
    "dump_path": "./msprobe_dump",
    "key_data_dump": False,
    "configurations_dump": False,
    "actor_infer_dump": False,
    "token_range_start": 0,
    "token_range_end": 0,
    "actor_train_dump": False,
    "reference_dump": False,
    "critic_train_dump": False,
    "step_start": 0,
    "step_end": 0,
}
SWITCHES = ["key_data_dump", "configurations_dump", "actor_infer_dump", "actor_train_dump", "reference_dump"]
WRONG = {bool: ["yes", 1, None], int: ["1", True, 1.5, -1, None], str: [1, None, True]}


def test_keys_and_defaults_are_the_seeds_in_its_order() -> None:
    assert list(MsprobeConfig().model_dump().items()) == list(SEED.items())


@pytest.mark.parametrize("key", SEED)
def test_types_are_the_seeds(key: str) -> None:
    for value in WRONG[type(SEED[key])]:
        with pytest.raises(ValidationError):
            MsprobeConfig.model_validate({key: value})


@pytest.mark.parametrize("key", ["critic_infer_dump", "Msprobe", "dump-path"])
def test_unknown_keys_are_refused(key: str) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        MsprobeConfig.model_validate({key: False})


@pytest.mark.parametrize(
    ("switch", "stages"),
    [
        ("actor_infer_dump", ("actor_generate_sequences",)),
        ("actor_train_dump", ("actor_compute_log_prob", "actor_update")),
        ("reference_dump", ("reference_compute_log_prob",)),
        ("critic_train_dump", ("critic_compute_values", "critic_update")),
    ],
)
def test_a_switch_dumps_the_seeds_stages(switch: str, stages: tuple[str, ...]) -> None:
    assert MsprobeConfig.model_validate({"msprobe": True, switch: True}).dump_stages == stages


def test_msprobe_false_turns_every_layer_dump_off() -> None:
    assert MsprobeConfig.model_validate(dict.fromkeys(SWITCHES, True)).dump_stages == ()


@pytest.mark.parametrize("what", ["step", "token_range"])
def test_a_range_that_runs_backwards_is_refused(what: str) -> None:
    with pytest.raises(ValidationError, match=rf"{what}_end \(1\) is before {what}_start \(2\)"):
        MsprobeConfig.model_validate({f"{what}_start": 2, f"{what}_end": 1})
    MsprobeConfig.model_validate({f"{what}_start": 2, f"{what}_end": 2})
