from __future__ import annotations

import pytest

from probe.errors import ConfigError
from probe.launch.requirements import Requirement, is_number, refuse, unmet, value_at

ORDER = Requirement(
    "rl_config.guarantee_order", "true", lambda value: value is True, True, "results are taken as they come"
)
SEED = Requirement("generate_config.sampling_config.seed", "a number", is_number, 1234, "sampling is random")


def test_what_is_lacking_is_found_in_order() -> None:
    assert unmet({"rl_config": {"guarantee_order": False}}, [ORDER, SEED]) == [ORDER, SEED]
    assert unmet({"rl_config": {"guarantee_order": True}}, [ORDER, SEED]) == [SEED]
    assert (
        unmet(
            {"rl_config": {"guarantee_order": True}, "generate_config": {"sampling_config": {"seed": 0}}}, [ORDER, SEED]
        )
        == []
    )


def test_a_key_below_a_value_is_lacking() -> None:
    assert value_at({"rl_config": 3}, "rl_config.guarantee_order") is None


def test_a_refusal_names_file_key_value_and_what_is_wanted() -> None:
    configuration = {"rl_config": {"guarantee_order": False}}
    with pytest.raises(ConfigError) as caught:
        refuse("grpo.yaml", configuration, unmet(configuration, [ORDER, SEED]))
    said = str(caught.value)
    assert said.startswith(
        "grpo.yaml: rl_config.guarantee_order: is false, must be true: results are taken as they come"
    )
    assert "generate_config.sampling_config.seed (not set, must be a number)" in said
    assert "determinism: enforce" in said


def test_nothing_lacking_is_no_refusal() -> None:
    refuse("grpo.yaml", {}, [])
