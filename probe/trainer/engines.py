"""What draws the responses: the actor itself through transformers, or a vLLM engine on the same device."""

from __future__ import annotations

import tempfile
from typing import Any, Protocol

import torch

from probe.config import GenerateConfig, SamplingConfig, TrainerRunConfig
from probe.errors import ConfigError
from probe.trainer.parallel import Sharing
from probe.trainer.rollout import Rollout, generate, rollout_of
from probe.trainer.tokenizer import Tokenizer


class Engine(Protocol):
    """Draws responses under the actor's weights."""

    def generate(self, prompts: torch.Tensor, prompt_mask: torch.Tensor) -> Rollout:
        """Draws one response for each row.

        Args:
            prompts: Token ids, padded on the left; int64 [B, L].
            prompt_mask: 1 where a prompt has a token; int64 [B, L].
        """
        ...

    def update_weights(self) -> None:
        """Takes the actor's present weights."""
        ...


class TransformersEngine:
    """The actor itself: it has its own weights already.

    Args:
        actor: The actor, and how ranks share it.
        config: Length and distribution.
        tokenizer: For the end and padding tokens.
        generator: Source of randomness, on the actor's device.
    """

    def __init__(
        self, actor: Sharing, config: SamplingConfig, tokenizer: Tokenizer, generator: torch.Generator
    ) -> None:
        self._actor = actor
        self._config = config
        self._tokenizer = tokenizer
        self._generator = generator

    def generate(self, prompts: torch.Tensor, prompt_mask: torch.Tensor) -> Rollout:
        """See ``Engine``. Ranks with shards generate as long as any of them does."""
        return generate(
            self._actor.model,
            prompts,
            prompt_mask,
            self._config,
            self._tokenizer,
            self._generator,
            wait_for_all=self._actor.sharded,
        )

    def update_weights(self) -> None:
        """Nothing to do."""


class VllmEngine:
    """A vLLM (or vllm-ascend) engine in this process, on the actor's device.

    Written against vLLM's offline API: ``LLM``, ``SamplingParams``, ``LLM.apply_model``, ``LLM.reset_prefix_cache``.
    Each row has a seed of its own, drawn from the generator, so that what is drawn does not depend on the batch.

    Args:
        vllm: The module ``vllm``.
        actor: A transformers causal language model.
        config: Share of memory, length, distribution.
        tokenizer: For the end and padding tokens.
        generator: Source of the rows' seeds.
    """

    def __init__(
        self, vllm: Any, actor: Any, config: GenerateConfig, tokenizer: Tokenizer, generator: torch.Generator
    ) -> None:
        self._vllm = vllm
        self._actor = actor
        self._sampling = config.sampling_config
        self._tokenizer = tokenizer
        self._generator = generator
        with tempfile.TemporaryDirectory(prefix="firstdiff-") as folder:
            actor.save_pretrained(folder)
            self._engine = vllm.LLM(
                model=folder,
                skip_tokenizer_init=True,
                enforce_eager=True,
                gpu_memory_utilization=config.gpu_memory_utilization,
                max_num_seqs=config.max_num_seqs,
                seed=generator.initial_seed() % 2**31,
            )

    def generate(self, prompts: torch.Tensor, prompt_mask: torch.Tensor) -> Rollout:
        """See ``Engine``."""
        seeds = torch.randint(2**31, (len(prompts),), generator=self._generator, device=self._generator.device)
        settings = [
            self._vllm.SamplingParams(
                max_tokens=self._sampling.max_tokens,
                temperature=self._sampling.temperature,
                top_k=self._sampling.top_k,
                top_p=self._sampling.top_p,
                seed=seed,
                stop_token_ids=[self._tokenizer.eos_token_id],
                logprobs=0,
                detokenize=False,
            )
            for seed in seeds.tolist()
        ]
        rows = [ids[mask.bool()].tolist() for ids, mask in zip(prompts, prompt_mask, strict=True)]
        outputs = self._engine.generate([{"prompt_token_ids": row} for row in rows], settings, use_tqdm=False)
        drawn = [output.outputs[0] for output in outputs]
        return rollout_of(
            prompts,
            prompt_mask,
            [list(found.token_ids) for found in drawn],
            [[place[token].logprob for token, place in zip(f.token_ids, f.logprobs, strict=True)] for f in drawn],
            self._sampling.max_tokens,
            self._tokenizer.pad_token_id,
        )

    def update_weights(self) -> None:
        """Copies every weight of the actor into the engine, and drops what it had computed with the old ones."""
        weights = [(name, weight.detach()) for name, weight in self._actor.state_dict().items()]
        self._engine.apply_model(lambda model: model.load_weights(weights))
        self._engine.reset_prefix_cache()


def make_engine(config: TrainerRunConfig, actor: Sharing, tokenizer: Tokenizer, generator: torch.Generator) -> Engine:
    """The engine that a configuration names.

    Args:
        config: ``generate_config.engine`` and its settings.
        actor: The actor, and how ranks share it.
        tokenizer: Of the actor.
        generator: Source of randomness, on the actor's device.

    Raises:
        ConfigError: vLLM is asked for and cannot be had here.
    """
    if config.generate_config.engine == "transformers":
        return TransformersEngine(actor, config.generate_config.sampling_config, tokenizer, generator)
    key = "generate_config.engine"
    if generator.device.type == "cpu":
        raise ConfigError("", key, "vllm needs an NPU or a GPU here; set it to transformers")
    if actor.trained is not actor.model or actor.sharded:
        raise ConfigError("", key, "vllm works with one rank; set it to transformers")
    if config.actor_config.lora_r is not None:
        raise ConfigError("", key, "vllm takes whole weights, not adapters; set it to transformers")
    try:
        import vllm
    except ImportError as error:
        raise ConfigError("", key, f"vllm cannot be imported ({error}); install vllm, or vllm-ascend on NPU") from error
    return VllmEngine(vllm, actor.model, config.generate_config, tokenizer, generator)
