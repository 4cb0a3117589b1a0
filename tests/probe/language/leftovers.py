"""English in what should be Chinese: words that are neither names nor code nor terms of the field."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html.parser import HTMLParser

TERMS = frozenset(
    # units, letters of runs and options, file formats and products: the same in any language
    "a b c d s h min KiB MiB GiB E I S K UTC ULP NaN CPU CUDA NPU NCCL LCCL NVLS PPO GEMM Atlas Linux Python NumPy"
    " Triton Inductor Transformer Engine cuBLAS cuDNN aclrt msprobe verl torch safetensors SingleSave SingleComparator"
    " DataLoader PYTHONHASHSEED PYTHONPATH FlashAttentionScoreGrad Probe wheel"
    # words of the field that README.zh-CN.md leaves as they are
    " rank trace Trace token checkpoint Checkpoint batch buffer worker kernel dtype shape profile Profile Host manifest"
    " attention dropout embedding epoch scatter gather cumsum index flash grouped autocast autograd hash workspace"
    " scaler loss critic meta dq responses layers keydata"
    # values and names of settings, and words of ours that programs read, in brackets behind the Chinese
    " true false True False accumulate nearest foreach fused strict generator random hashlib state dict step"
    " determinism faults identical equivalent divergent inconclusive recomputed reduced changed gathered"
    " forward"
    # inference engines, and what Ray and verl call their parts
    " Ray RAY_ADDRESS driver rollout vLLM head profiler address local enforce".split()
)
_CODE = frozenset({"script", "style", "code", "pre"})
_VOID = frozenset({"meta", "br", "img", "link", "input", "hr", "line", "circle", "polyline"})
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.\-/:+=()\[\]]*")
_SENTENCE = re.compile(r"\b[A-Za-z][a-z]+ [a-z]+ [a-z]+ [a-z]+\b")


class Visible(HTMLParser):
    """The text of a page that people read, and that of its tooltips; nothing that is marked as code."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.language = ""
        self._open: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        self.language = said.get("lang") or self.language
        self.texts += [text for name in ("title", "aria-label") if (text := said.get(name))]
        if tag not in _VOID:
            classes = (said.get("class") or "").split()
            self._open.append((tag, tag in _CODE or "code" in classes or "digest" in classes))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if data.strip() and not any(code for _, code in self._open):
            self.texts.append(data.strip())


def visible(page: str) -> Visible:
    """What people read of a page."""
    found = Visible()
    found.feed(page)
    return found


def english_in(text: str, names: Iterable[str] = ()) -> list[str]:
    """Words of a text that are English.

    Args:
        text: The text.
        names: What the runs call things: modules, tags, stages, kinds of events and causes, folders.
    """
    without = re.sub(r"https?://\S+|`+[^`]*`+", " ", re.sub(r"\\(\W|_)", r"\1", text))
    for name in sorted(names, key=len, reverse=True):
        without = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w]|\.\w)", " ", without)
    words = [word.strip(".:()[]/-+=") for word in _WORD.findall(without)]
    left = [word for word in words if re.fullmatch("[A-Za-z]+", word) and word not in TERMS]
    return left + _SENTENCE.findall(without)
