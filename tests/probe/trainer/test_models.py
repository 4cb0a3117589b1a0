"""Models: a small Qwen2 with random weights, or a local folder; never anything that is downloaded."""

from __future__ import annotations

import json

import pytest
import torch

from probe.config import ModelConfig, TrainingConfig
from probe.errors import ConfigError
from probe.trainer.models import build_models
from probe.trainer.tokenizer import ByteTokenizer, FolderTokenizer

CPU = torch.device("cpu")


def same_weights(one, other) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.fixture
def saved(models, tmp_path):
    """A folder with the weights of a small model and no tokenizer."""
    models.actor.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


class TestRandom:
    def test_weights_come_from_the_seed(self, small_config):
        built = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            built.append(build_models(TrainingConfig(model=ModelConfig(config=small_config)), CPU).actor)
        assert same_weights(built[0], built[1])
        assert not same_weights(built[0], built[2])

    def test_the_reference_is_a_frozen_copy_of_its_own(self, models):
        assert same_weights(models.actor, models.reference)
        assert not models.reference.training
        assert not any(p.requires_grad for p in models.reference.parameters())
        assert all(p.requires_grad for p in models.actor.parameters())
        with torch.no_grad():
            models.actor.lm_head.weight.add_(1)
        assert not same_weights(models.actor, models.reference)

    def test_it_is_what_the_configuration_says(self, models):
        assert type(models.actor).__name__ == "Qwen2ForCausalLM"
        assert models.actor.config.hidden_size == 16
        assert models.actor.config.vocab_size == ByteTokenizer.vocab_size
        assert len(models.actor.model.layers) == 2
        assert {p.dtype for p in models.actor.parameters()} == {torch.float32}
        assert isinstance(models.tokenizer, ByteTokenizer)

    @pytest.mark.parametrize(
        "change",
        [
            {"hidden_size": "sixteen"},
            {"hidden_act": "no-such-function"},
            {"attn_implementation": "flash"},
            {"num_hidden_layers": -1},
            {"vocab_size": 100},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_a_configuration_that_makes_no_model_is_a_clear_error(self, change, small_config):
        with pytest.raises(ConfigError) as caught:
            build_models(TrainingConfig(model=ModelConfig(config={**small_config, **change})), CPU)
        assert caught.value.key.startswith("model")
        assert "\n" not in str(caught.value)

    def test_an_unknown_key_is_refused_rather_than_ignored(self, small_config):
        with pytest.raises(ConfigError, match="num_hiden_layers"):
            build_models(TrainingConfig(model=ModelConfig(config={**small_config, "num_hiden_layers": 1})), CPU)


class TestFolder:
    def test_weights_are_those_of_the_folder_and_bytes_are_tokens_where_it_has_no_tokenizer(self, saved, models):
        loaded = build_models(TrainingConfig(model=ModelConfig(path=str(saved))), CPU)
        assert same_weights(loaded.actor, models.actor)
        assert same_weights(loaded.reference, models.actor)
        assert isinstance(loaded.tokenizer, ByteTokenizer)

    def test_its_tokenizer_is_used(self, saved):
        from tokenizers import Tokenizer
        from tokenizers import models as kinds
        from transformers import PreTrainedTokenizerFast

        inner = Tokenizer(kinds.WordLevel({"<unk>": 0, "</s>": 1, "<pad>": 2}, unk_token="<unk>"))
        PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", pad_token="<pad>").save_pretrained(saved)
        tokenizer = build_models(TrainingConfig(model=ModelConfig(path=str(saved))), CPU).tokenizer
        assert isinstance(tokenizer, FolderTokenizer)
        assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2)

    def test_half_precision_weights_are_trained_in_float32(self, saved, models):
        models.actor.to(torch.bfloat16).save_pretrained(saved)
        actor = build_models(TrainingConfig(model=ModelConfig(path=str(saved))), CPU).actor
        assert {parameter.dtype for parameter in actor.parameters()} == {torch.float32}

    def test_an_empty_folder_is_a_clear_error(self, tmp_path):
        with pytest.raises(ConfigError, match="model.path: makes no model") as caught:
            build_models(TrainingConfig(model=ModelConfig(path=str(tmp_path))), CPU)
        assert caught.value.source == str(tmp_path)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("content", [b"", b"not weights at all", b"\xff" * 64], ids=["empty", "text", "bytes"])
    def test_damaged_weights_are_a_clear_error(self, content, saved):
        (saved / "model.safetensors").write_bytes(content)
        with pytest.raises(ConfigError, match="model.path: makes no model"):
            build_models(TrainingConfig(model=ModelConfig(path=str(saved))), CPU)

    def test_missing_weights_are_never_filled_with_random_ones(self, saved):
        from safetensors.torch import load_file, save_file

        weights = load_file(saved / "model.safetensors")
        del weights["model.layers.1.mlp.down_proj.weight"]
        save_file(weights, saved / "model.safetensors", {"format": "pt"})
        with pytest.raises(ConfigError, match="model.path"):
            build_models(TrainingConfig(model=ModelConfig(path=str(saved))), CPU)

    def test_fewer_embeddings_than_tokens_are_refused(self, saved, small_config, tmp_path):
        config = json.loads((saved / "config.json").read_text())
        from transformers import Qwen2Config, Qwen2ForCausalLM

        Qwen2ForCausalLM(Qwen2Config(**{**small_config, "vocab_size": 200})).save_pretrained(tmp_path / "small")
        assert config["vocab_size"] == 258
        with pytest.raises(ConfigError, match="200 embeddings, fewer than its tokenizer's tokens"):
            build_models(TrainingConfig(model=ModelConfig(path=str(tmp_path / "small"))), CPU)
