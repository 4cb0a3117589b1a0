"""What the first differing event of a trace means: its kind is the cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from probe.compare.trace_found import EventDifference, RankTrace
from probe.language import Text, recall, tell
from probe.locate.cause import Cause
from probe.locate.trace_batches import got_instead, is_reordered, other_axis, portions_of
from probe.locate.trace_context import Context, last_before
from probe.locate.trace_items import and_more, changed_items, form_of, one_only, parameter_of
from probe.locate.trace_outermost import kind_of_outermost
from probe.locate.trace_update import cause_of_first_gradient, cause_of_optimizer, cause_of_parameter_gradient
from probe.store.trace_events import ROWS_KEPT, TraceEvent
from probe.types import STAGE_OF_TAG

GENERATION = "actor_generate_sequences"


def cause_of_event(found: RankTrace, around: Context, sharing: Sequence[RankTrace]) -> Cause:
    """Classifies a rank's first difference.

    Args:
        found: The rank.
        around: What lies before the difference.
        sharing: All ranks whose first difference is the same event.

    Raises:
        DumpError: The trace cannot be read any more.
    """
    difference = found.first
    assert difference is not None
    cause = _calls(difference, found) or _portions(found, around) or _by_kind(difference, found, around, sharing)
    if found.first_index == 0 and cause.kind not in ("weights", "buffers", "rng", "calls"):
        text = tell(
            "{explanation}; it is the first traced event: what came before it is not known to be the same",
            explanation=cause.explanation,
        )
        cause = replace(cause, explanation=text)
    for hidden in around.hidden[-1:]:
        text = tell(
            "{explanation}; {name}{more} could not be observed{why}: what happened there, up to event {index}, is not"
            " known to be the same",
            explanation=cause.explanation,
            name=hidden.label,
            more=and_more(len(around.hidden)),
            why=tell(" ({note})", note=recall(hidden.note)) if hidden.note else "",
            index=found.first_index,
        )
        cause = replace(cause, explanation=text)
    return cause


def _calls(difference: EventDifference, found: RankTrace) -> Cause | None:
    """The cause where an event, or its call, is one run's alone."""
    event, one, two = difference.event, difference.a, difference.b
    call = tell(" (call {call})", call=event.call) if event.call is not None else ""
    if one is None or two is None:
        runs, other = (tell("a, not in b"), "extra") if two is None else (tell("b, not in a"), "missing")
        does = _does(event)
        mine = [later for later in found.following if later.status == other and later.event.key == event.key]
        if mine:
            return Cause(
                "calls", event.label, tell("{does}{call} in another order: control flow", does=does, call=call)
            )
        at_once = [later.event for later in found.following[:1] if later.status == other]
        instead = next((later for later in at_once if later.index == event.index), None)
        said: str = ""
        if instead is not None:
            run = "b" if two is None else "a"
            said = tell("; {run} has {name} ({kind}) there", run=run, name=instead.label, kind=instead.kind)
        if event.kind == "not_observed":
            why = tell(
                "could not be observed in {runs} ({note}){instead}",
                runs=runs,
                note=recall(event.note or ""),
                instead=said,
            )
            return Cause("calls", event.label, why)
        if event.kind == "optimizer":
            why = tell(
                "{does} is in {runs}{instead}: an update that was skipped or made once more (a loss scaler,"
                " accumulation, control flow)",
                does=does, runs=runs, instead=said,
            )  # fmt: skip
            return Cause("calls", event.label, why)
        why = tell(
            "{does}{call} in {runs}{instead}: caching, batching or control flow",
            does=does, call=call, runs=runs, instead=said,
        )  # fmt: skip
        return Cause("calls", event.label, why)
    if one.items == two.items and one.rows == two.rows:
        if one.call != two.call:
            return Cause(
                "calls",
                event.label,
                tell("{label} is call {a} in a, call {b} in b", label=event.label, a=one.call, b=two.call),
            )
        if one.module != two.module:
            return Cause(
                "calls",
                event.label,
                tell(
                    "{label} is a {a} in a, a {b} in b",
                    label=event.label,
                    a=one.module,
                    b=two.module,
                ),
            )
        if event.kind == "not_observed":
            return Cause(
                "none",
                event.label,
                tell("could not be observed: in a {a}, in b {b}", a=recall(one.note or ""), b=recall(two.note or "")),
            )
    return None


def _portions(found: RankTrace, around: Context) -> Cause | None:
    """The cause where a model is given the same in other portions: whole rows, or with and without a cache."""
    difference = found.first
    assert difference is not None
    event = difference.event
    portions = portions_of(found)
    if portions is not None:
        saved = event.kind == "data"
        does = tell("{name} is saved", name=event.label) if saved else tell("{name} gets", name=event.label)
        why = tell("{does} {portions}, as much in all: batching, no module", does=does, portions=portions.text)
        return Cause("calls", event.label, why)
    if event.kind == "forward_input" and event.is_root and around.root_left and difference.a and difference.b:
        place = other_axis(difference.a.items, difference.b.items)
        if place is not None and place[1] > 0:  # along the first axis, rows may have ended
            why = tell(
                "{name} gave the same, then got another shape{form}: caching or control flow",
                name=event.label, form=form_of(difference),
            )  # fmt: skip
            return Cause("calls", event.label, why)
    return None


def _does(event: TraceEvent) -> Text:
    match event.kind:
        case "forward_input" | "forward_output":
            if event.recomputed:
                return tell("{name} was called again by gradient checkpointing", name=event.label)
            return tell("{name} was called", name=event.label)
        case "data":
            return tell("{label} was saved", label=event.label)
        case "optimizer":
            return tell(
                "a step of the optimizer of {role} ({what})",
                role=event.role,
                what=event.label.partition(":")[2],
            )
        case "stage_start":
            return tell("stage {name} was entered", name=event.label)
        case "stage_end":
            return tell("stage {name} was left", name=event.label)
        case _:
            return tell("{label} ({kind}) was seen", label=event.label, kind=event.kind)


def _by_kind(  # noqa: C901 - one case for each row of the table of causes
    difference: EventDifference, found: RankTrace, around: Context, sharing: Sequence[RankTrace]
) -> Cause:
    event, name, enclosing = difference.event, difference.event.label, around.enclosing
    again = tell(" when gradient checkpointing ran it again") if event.recomputed else ""
    parameter = parameter_of(difference)
    match event.kind:
        case "weights" | "buffers" | "rng":
            return _state(difference, found)
        case "data":
            return _data(difference, around, sharing)
        case "forward_output":
            why = tell(
                "same inputs and weights, different output{again}{form}{own}",
                again=again, form=form_of(difference), own=_own_code(around),
            )  # fmt: skip
            return Cause("module_forward", name, why)
        case "forward_input" if event.is_root and event.stage == GENERATION and around.root_left:
            instead = got_instead(changed_items(difference), form_of(difference))
            why = tell("the model gave the same outputs, then got {instead}", instead=instead)
            return Cause("sampling", "responses", why)
        case "forward_input" if event.is_root and enclosing is None and is_reordered(found):
            why = tell(
                "{name} gets the same in both runs, call for call, in another order: the order of the batches",
                name=name,
            )
            return Cause("data", name, why + form_of(difference), permutation=True)
        case "forward_input" if event.is_root and enclosing is None:
            why = tell("everything before is the same, what {name} got is not: code before the model", name=name)
            return Cause("data", name, why + form_of(difference))
        case "forward_input":
            outer = enclosing or name.rpartition(".")[0] or name
            why = tell(
                "everything before {name} is the same, its inputs are not: code of {outer} between its modules",
                name=name,
                outer=outer,
            )
            return Cause("module_input", outer, why + _behind(around, outer) + again + form_of(difference))
        case "grad_output" if not around.gradient_before:
            return cause_of_first_gradient(name, found)
        case "grad_output":
            outer = enclosing or name.rpartition(".")[0] or name
            why = tell(
                "the gradients before {name} are the same, the one that arrived is not: the backward of {outer} between"
                " its modules, or a hook on gradients there",
                name=name, outer=outer,
            )  # fmt: skip
            return Cause("module_backward", outer, why)
        case "grad_input":
            return Cause("module_backward", name, tell("same gradient arrived, a different one was passed on"))
        case "param_grad" if event.note:
            why = tell(
                "the gradient was the same before it was {note}: the reduction over the ranks", note=recall(event.note)
            )
            return Cause("gradient", name, why)
        case "param_grad":
            return cause_of_parameter_gradient(event, found)
        case "optimizer":
            return cause_of_optimizer(difference, found, parameter)
        case _:
            return Cause(
                "calls",
                name,
                tell("{name} ({kind}) is not the same in both runs: control flow", name=name, kind=event.kind),
            )


def _own_code(around: Context) -> str:
    """Where in a module that has others inside its output became different."""
    last = around.last_inside
    if not last:
        return ""
    return tell("; the modules inside gave the same, {last} last: its own code behind that, or a hook", last=last)


def _behind(around: Context, outer: str) -> str:
    """The last module before a place in the code of another."""
    for earlier in reversed(around.before):
        if earlier.kind == "forward_output" and earlier.label.startswith(f"{outer}."):
            return tell(", behind {label}, or a hook", label=earlier.label)
        if earlier.label == outer:
            break
    return tell(", or a hook")


def _state(difference: EventDifference, found: RankTrace) -> Cause:
    """Weights, buffers and random states: what can be said of when they began to differ."""
    event = difference.event
    assert found.file is not None
    earlier = last_before(found.file, found.offset, event)
    if earlier is None:
        since = tell("it differed before the first traced event that shows it")
    else:
        stage = earlier.stage or tell("no stage")
        since = tell(
            "it was the same at event {index} (step {step}, {stage})",
            index=earlier.index, step=earlier.step, stage=stage,
        )  # fmt: skip
    if event.kind == "rng":
        new = earlier is None
        why = tell("a seed, or a resumed state") if new else tell("an extra draw, or another seed, in between")
        return Cause("rng", event.label, tell("the random state differs; {since}: {why}", since=since, why=why))
    why = tell("load or initialisation") if earlier is None else tell("an update, a weight sync or a load in between")
    explanation = tell(
        "{what}{more} differs; {since}: {why}{only}",
        what=tell("the parameter") if event.kind == "weights" else tell("the buffer"),
        more=and_more(len(changed_items(difference))),
        since=since,
        why=why,
        only=one_only(difference),
    )
    return Cause(event.kind, parameter_of(difference), explanation)


def _data(difference: EventDifference, around: Context, sharing: Sequence[RankTrace]) -> Cause:
    event = difference.event
    kind, why = kind_of_outermost(event, around) or _kind_of_tag(event, around)
    name = _parameter_of_tag(difference) if event.name == "weights" else event.label
    name = event.stage.partition(".")[0] if kind == "module_forward" and event.stage else name
    why += form_of(difference)
    permutation, swapped = is_permutation(difference), swapped_ranks(sharing)
    if permutation:
        why += tell("; the rows are the same in another order")
    if swapped:
        why += tell("; ranks {one} and {two} exchanged theirs", one=swapped[0], two=swapped[1])
    if permutation and kind == "sampling":
        kind, why = (
            "data",
            tell("the model's outputs are the same{form}, and the rows, in another order", form=form_of(difference)),
        )
    data = kind == "data" or permutation or swapped is not None
    return Cause(kind, name, why, permutation if data else None, swapped)


def _parameter_of_tag(difference: EventDifference) -> str:
    changed = changed_items(difference)
    return changed[0][0] if changed and changed[0][0] else "weights"


def _kind_of_tag(event: TraceEvent, around: Context) -> tuple[str, str]:
    tag = event.label
    stage = event.stage or STAGE_OF_TAG.get(tag)
    match tag:
        case "prompts":
            return "data", tell("no model is involved: data order, sampler or sharding")
        case "rewards":
            return "rewards", tell("no model is involved: host code that scores the responses")
        case "advantages":
            return "advantages", tell("no model is involved: host code between the stages")
        case "grad_norm":
            return "optimizer", tell("the gradients before it are the same: clipping, or a reduction over them")
        case "weights" if around.update_before:
            return "optimizer", tell("what the optimizer got is the same, the weights after it are not")
        case "weights":
            return "weights", tell("an update, a load or the initialisation of the weights")
    if tag == "responses" or (stage == GENERATION and around.root_left):
        same = tell("the model's outputs") if around.root_left else tell("everything traced before them")
        why = tell(
            "{same} and the recorded random states are the same: the generation's seed, or code after the model",
            same=same,
        )
        return "sampling", why
    if stage is None:
        return "data", tell("no model is involved: host code that made this value")
    if around.root_left:
        return "loss", tell("the outputs of the model in {stage} are the same: code after the model", stage=stage)
    if around.forward_before or event.stage is None:
        return "loss", tell("everything before it in {stage} is the same: code that computes it", stage=stage)
    return "data", tell("no model ran before it in {stage}: host code that made this value", stage=stage)


def is_permutation(difference: EventDifference) -> bool:
    """Whether all that differs has the same rows in another order; False where not all rows are known."""
    one, two = difference.a, difference.b
    changed = changed_items(difference)
    if one is None or two is None or not changed:
        return False
    return all(
        left is not None
        and right is not None
        and left[1:3] == right[1:3]
        and path in one.rows
        and path in two.rows
        and left[2][:1] == (len(one.rows[path]),)
        and len(one.rows[path]) <= ROWS_KEPT
        and one.rows[path] != two.rows[path]
        and Counter(one.rows[path]) == Counter(two.rows[path])
        for path, left, right in changed
    )


def swapped_ranks(sharing: Sequence[RankTrace]) -> tuple[int, int] | None:
    """Two ranks that exchanged what the same event holds; None where there are none."""
    pairs = [(found.rank, found.first.a.items, found.first.b.items) for found in sharing
             if found.first and found.first.a and found.first.b]  # fmt: skip
    for number, (rank, one, two) in enumerate(pairs):
        for other, left, right in pairs[number + 1 :]:
            if one == right and two == left:
                return (rank, other)
    return None
