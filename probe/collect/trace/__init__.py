"""The execution trace of a trainer process: what went into and came out of every module, in the order of execution.

Nothing here changes the training: ``forward`` is replaced on the classes of attached models, gradients are read by
hooks on tensors and on nodes of the autograd graph, and all of it is taken away when the probe closes.
"""

from __future__ import annotations

from probe.collect.trace.capture import Capture
from probe.collect.trace.tracer import ExecutionTracer, Surviving, Tracer, Untraced

__all__ = ["Capture", "ExecutionTracer", "Surviving", "Tracer", "Untraced"]
