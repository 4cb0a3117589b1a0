"""Engines: transformers' for real; vLLM's against its interface, since it needs an accelerator."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probe.config import GenerateConfig, ModelConfig, SamplingConfig, TrainerRunConfig
from probe.errors import ConfigError
from probe.trainer.engines import TransformersEngine, VllmEngine, make_engine
from probe.trainer.parallel import Ranks, Sharing
from probe.trainer.rollout import pad_left

CPU = torch.device("cpu")


@dataclass
class StandIn:
    """What ``VllmEngine`` uses of vLLM 0.9 and later; it answers with the prompt's length, then the end token."""

    made: dict[str, Any] = field(default_factory=dict)
    settings: list[Any] = field(default_factory=list)
    loaded: dict[str, torch.Tensor] = field(default_factory=dict)
    resets: int = 0

    def LLM(self, **options: Any) -> StandIn:  # noqa: N802  (vLLM's name)
        self.made = options
        return self

    def SamplingParams(self, **options: Any) -> Any:  # noqa: N802
        return SimpleNamespace(**options)

    def generate(self, prompts: list[dict[str, list[int]]], settings: list[Any], use_tqdm: bool) -> list[Any]:
        assert use_tqdm is False
        self.settings += settings
        outputs = []
        for prompt in prompts:
            tokens = [len(prompt["prompt_token_ids"]), 257]
            chances = [{token: SimpleNamespace(logprob=-0.5 * token)} for token in tokens]
            outputs.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(tokens), logprobs=chances)]))
        return outputs

    def apply_model(self, function: Any) -> None:
        function(SimpleNamespace(load_weights=lambda weights: self.loaded.update(weights)))

    def reset_prefix_cache(self) -> None:
        self.resets += 1


@pytest.fixture
def vllm(models: Any) -> tuple[StandIn, VllmEngine]:
    module = StandIn()
    config = GenerateConfig(
        engine="vllm", gpu_memory_utilization=0.2, sampling_config=SamplingConfig(max_tokens=3, top_k=5)
    )
    return module, VllmEngine(module, models.actor, config, models.tokenizer, torch.Generator().manual_seed(4))


def test_vllm_s_answers_become_a_rollout(vllm: tuple[StandIn, VllmEngine]) -> None:
    module, engine = vllm
    rollout = engine.generate(*pad_left([[1], [2, 3, 4]], 256, CPU))
    assert rollout.responses.tolist() == [[1, 257, 256], [3, 257, 256]]
    assert rollout.response_mask.tolist() == [[1, 1, 0], [1, 1, 0]]
    assert rollout.log_probs.tolist() == [[-0.5, -128.5, 0], [-1.5, -128.5, 0]]
    assert (module.made["gpu_memory_utilization"], module.made["skip_tokenizer_init"]) == (0.2, True)
    first = module.settings[0]
    assert (first.max_tokens, first.top_k, first.stop_token_ids, first.logprobs) == (3, 5, [257], 0)


def test_every_row_has_a_seed_from_the_generator(vllm: tuple[StandIn, VllmEngine], models: Any) -> None:
    module, engine = vllm
    for _ in range(2):
        engine.generate(*pad_left([[1], [2]], 256, CPU))
    seeds = [settings.seed for settings in module.settings]
    assert len(set(seeds)) == 4
    again = torch.randint(2**31, (2,), generator=torch.Generator().manual_seed(4)).tolist()
    assert seeds[:2] == again


def test_an_update_hands_over_every_weight_and_forgets_the_cache(vllm: tuple[StandIn, VllmEngine], models: Any) -> None:
    module, engine = vllm
    engine.update_weights()
    assert set(module.loaded) == set(models.actor.state_dict())
    assert torch.equal(module.loaded["lm_head.weight"], models.actor.lm_head.weight)
    assert module.resets == 1


def test_transformers_is_the_default_and_vllm_needs_an_accelerator(models: Any, small_config: Any) -> None:
    def make(engine: Any) -> Any:
        config = TrainerRunConfig(model=ModelConfig(config=small_config), generate_config=GenerateConfig(engine=engine))
        sharing = Sharing(models.actor, [], [], "ddp", Ranks(CPU))
        return make_engine(config, sharing, models.tokenizer, torch.Generator())

    assert isinstance(make("transformers"), TransformersEngine)
    with pytest.raises(ConfigError, match=r"generate_config\.engine: vllm needs an NPU or a GPU"):
        make("vllm")
