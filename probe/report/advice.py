"""What to do next, by verdict and cause."""

from __future__ import annotations

from typing import Any

_BY_CAUSE = {
    "module_forward": "Look at this module's forward pass: a kernel without a deterministic form (atomics, split-K,"
    " autotuning), or one that reads memory that it did not write. Ask for deterministic algorithms.",
    "module_backward": "Look at this module's backward pass: scatter-adds, attention and embedding gradients often have"
    " no deterministic form. Ask for deterministic algorithms.",
    "module_input": "Look at the code of this module between its child modules: it changed what it handed on.",
    "weights": "Look at what wrote this parameter before: the last update, the weight sync, the load or the"
    " initialisation.",
    "buffers": "Look at what wrote this buffer before.",
    "rng": "Look at the seeds: an extra draw, a resume without its random states, a worker without a seed.",
    "data": "Look at the order of the data: sampler, shuffling, number of loader workers, sharding.",
    "sampling": "Look at the generation: its seed, its batching, and the code between the model and the next token.",
    "rewards": "Look at the code that scores the responses: time limits, sets, threads.",
    "advantages": "Look at the host code between the stages that makes the advantages.",
    "loss": "Look at the code after the model: log-probabilities, masks, reductions.",
    "gradient": "Look at how this parameter's gradient is accumulated or reduced between ranks.",
    "optimizer": "Look at clipping, the reduction between ranks and the optimizer (fused or foreach kernels).",
    "calls": "Look at control flow: caching, dynamic batching or filtering made a call in one run only.",
}


def advice(document: dict[str, Any]) -> str:
    """What somebody who reads a verdict should do next, in a sentence or two.

    Args:
        document: The content of ``verdict.json``.
    """
    verdict = document["verdict"]
    if verdict in ("identical", "equivalent"):
        return "Nothing."
    if verdict == "inconclusive":
        if document["configurations"]["different"]:
            return "Make the two runs the same experiment, or name what is meant to differ in check.allow_different."
        return "Read the error and the trainer's log, mend what failed, and check again."
    if document["layers"]["reproduced"] is False:
        return "It is intermittent: check again with more steps. " + _of_cause(document)
    return _of_cause(document)


def _of_cause(document: dict[str, Any]) -> str:
    kind = document["cause"]["kind"]
    return _BY_CAUSE.get(kind, "Read the report: no single module or record explains the difference.")
