"""Tokenizers: bytes, or what a model's folder holds."""

from __future__ import annotations

import json

import pytest

from probe.errors import ConfigError
from probe.trainer.tokenizer import ByteTokenizer, FolderTokenizer, load_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer of three words, as transformers saves it; it pads with nothing of its own."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "one": 2, "two": 3}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>").save_pretrained(folder)
    return folder


class TestBytes:
    @pytest.mark.parametrize("text", ["", "1+2=", "naïve", "🙂", "\0\n"])
    def test_text_survives(self, text):
        tokenizer = ByteTokenizer()
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert all(0 <= token < 256 for token in tokenizer.encode(text))

    def test_special_tokens_are_left_out_and_lie_in_the_vocabulary(self):
        tokenizer = ByteTokenizer()
        assert tokenizer.decode([tokenizer.pad_token_id, 51, tokenizer.eos_token_id]) == "3"
        assert sorted([tokenizer.pad_token_id, tokenizer.eos_token_id]) == [256, 257]
        assert tokenizer.vocab_size == 258

    def test_bytes_that_are_no_text_are_marked(self):
        assert ByteTokenizer().decode([0xFF, 65]) == "\ufffdA"


class TestFolder:
    def test_it_encodes_without_special_tokens_and_decodes_without_them(self, folder):
        tokenizer = load_tokenizer(str(folder))
        assert isinstance(tokenizer, FolderTokenizer)
        assert tokenizer.encode("one two") == [2, 3]
        assert tokenizer.decode([3, 2, tokenizer.eos_token_id]).split() == ["two", "one"]

    def test_without_a_padding_token_it_pads_with_the_end(self, folder):
        tokenizer = load_tokenizer(str(folder))
        assert tokenizer.pad_token_id == tokenizer.eos_token_id == 1

    def test_one_without_an_end_token_is_refused(self, folder, tmp_path):
        for file in folder.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        config["eos_token"] = None
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError, match=r"model.path: its tokenizer names no end token"):
            load_tokenizer(str(tmp_path))

    @pytest.mark.parametrize("content", ["{", "{}", '{"model": 3}'])
    def test_a_damaged_one_is_a_clear_error(self, content, tmp_path):
        (tmp_path / "tokenizer.json").write_text(content)
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        with pytest.raises(ConfigError, match="model.path: no tokenizer can be read there") as caught:
            load_tokenizer(str(tmp_path))
        assert str(tmp_path) in str(caught.value)


def test_bytes_are_the_tokens_where_there_is_no_tokenizer(tmp_path):
    assert isinstance(load_tokenizer(None), ByteTokenizer)
    assert isinstance(load_tokenizer(str(tmp_path)), ByteTokenizer)
