"""What a script's outermost call of a model was given and returned: saved by the adapter that observes it."""

from __future__ import annotations

from probe.language import tell
from probe.locate.trace_context import Context
from probe.store.trace_events import TraceEvent


def kind_of_outermost(event: TraceEvent, around: Context) -> tuple[str, str] | None:
    """Cause and explanation where the inputs or the outputs of a call are the first to differ; None for other tags.

    Args:
        event: What was saved.
        around: What lies before it.
    """
    if event.stage is None:
        return None
    if event.label == "inputs":
        before = (
            tell("the outputs of the model before it are the same")
            if around.root_left
            else tell("everything before it is the same")
        )
        return "data", tell(
            "{before}, what {stage} is given is not: data, its order, or code on the way",
            before=before,
            stage=event.stage,
        )
    if event.label == "outputs" and not around.root_left:
        why = tell(
            "what it was given is the same, what it returned is not; its inside was not seen (torch.compile, torch.jit)"
        )
        return "module_forward", why
    return None
