"""What the first differing event of a trace means: its kind is the cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from probe.compare.trace_found import EventDifference, RankTrace
from probe.locate.cause import Cause
from probe.locate.trace_batches import got_instead, is_reordered, other_axis, portions_of
from probe.locate.trace_context import Context, last_before, last_items
from probe.locate.trace_outermost import kind_of_outermost
from probe.locate.trace_saved import saved_later
from probe.store.trace_events import ROWS_KEPT, Item, TraceEvent
from probe.types import STAGE_OF_TAG

GENERATION = "actor_generate_sequences"
_SHOWN = 3
"""Most missing and extra names that an explanation lists."""


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
        text = f"{cause.explanation}; it is the first traced event: what came before it is not known to be the same"
        cause = replace(cause, explanation=text)
    for hidden in around.hidden[-1:]:
        more = f" and {len(around.hidden) - 1} more" if len(around.hidden) > 1 else ""
        why = f" ({hidden.note})" if hidden.note else ""
        text = (
            f"{cause.explanation}; {hidden.label}{more} could not be observed{why}: what happened there, up to event"
            f" {found.first_index}, is not known to be the same"
        )
        cause = replace(cause, explanation=text)
    return cause


def changed_items(difference: EventDifference) -> list[tuple[str, Item | None, Item | None]]:
    """The items that are not the same: path, and what each run has there."""
    one, two = difference.a, difference.b
    left, right = (_by_path(event.items if event else ()) for event in (one, two))
    return [(key[0], left.get(key), right.get(key)) for key in {**left, **right} if left.get(key) != right.get(key)]


def _by_path(items: Sequence[Item]) -> dict[tuple[str, int], Item]:
    """Items by path, and by number where a path comes twice."""
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], Item] = {}
    for item in items:
        found[item[0], seen[item[0]]] = item
        seen[item[0]] += 1
    return found


def _calls(difference: EventDifference, found: RankTrace) -> Cause | None:
    """The cause where an event, or its call, is one run's alone."""
    event, one, two = difference.event, difference.a, difference.b
    call = f" (call {event.call})" if event.call is not None else ""
    if one is None or two is None:
        runs, other = ("a, not in b", "extra") if two is None else ("b, not in a", "missing")
        mine = [later for later in found.following if later.status == other and later.event.key == event.key]
        if mine:
            return Cause("calls", event.label, f"{_does(event)}{call} in another order: control flow")
        at_once = [later.event for later in found.following[:1] if later.status == other]
        instead = next((later for later in at_once if later.index == event.index), None)
        said = f"; {'b' if two is None else 'a'} has {instead.label} ({instead.kind}) there" if instead else ""
        if event.kind == "not_observed":
            return Cause("calls", event.label, f"could not be observed in {runs} ({event.note}){said}")
        if event.kind == "optimizer":
            why = "an update that was skipped or made once more (a loss scaler, accumulation, control flow)"
            return Cause("calls", event.label, f"{_does(event)} is in {runs}{said}: {why}")
        return Cause("calls", event.label, f"{_does(event)}{call} in {runs}{said}: caching, batching or control flow")
    if one.items == two.items and one.rows == two.rows:
        if one.call != two.call:
            return Cause("calls", event.label, f"{event.label} is call {one.call} in a, call {two.call} in b")
        if one.module != two.module:
            return Cause("calls", event.label, f"{event.label} is a {one.module} in a, a {two.module} in b")
        if event.kind == "not_observed":
            return Cause("none", event.label, f"could not be observed: in a {one.note}, in b {two.note}")
    return None


def _portions(found: RankTrace, around: Context) -> Cause | None:
    """The cause where a model is given the same in other portions: whole rows, or with and without a cache."""
    difference = found.first
    assert difference is not None
    event = difference.event
    portions = portions_of(found)
    if portions is not None:
        verb = "is saved" if event.kind == "data" else "gets"
        return Cause("calls", event.label, f"{event.label} {verb} {portions.text}, as much in all: batching, no module")
    if event.kind == "forward_input" and event.is_root and around.root_left and difference.a and difference.b:
        place = other_axis(difference.a.items, difference.b.items)
        if place is not None and place[1] > 0:  # along the first axis, rows may have ended
            why = f"{event.label} gave the same, then got another shape{_form(difference)}: caching or control flow"
            return Cause("calls", event.label, why)
    return None


def _does(event: TraceEvent) -> str:
    match event.kind:
        case "forward_input" | "forward_output":
            return f"{event.label} was called" + (" again by gradient checkpointing" if event.recomputed else "")
        case "data":
            return f"{event.label} was saved"
        case "optimizer":
            return f"a step of the optimizer of {event.role} ({event.label.partition(':')[2]})"
        case "stage_start" | "stage_end":
            return f"stage {event.label} was {'entered' if event.kind == 'stage_start' else 'left'}"
        case _:
            return f"{event.label} ({event.kind}) was seen"


def _by_kind(  # noqa: C901 - one case for each row of the table of causes
    difference: EventDifference, found: RankTrace, around: Context, sharing: Sequence[RankTrace]
) -> Cause:
    event, name, enclosing = difference.event, difference.event.label, around.enclosing
    again = " when gradient checkpointing ran it again" if event.recomputed else ""
    parameter = _parameter(difference)
    match event.kind:
        case "weights" | "buffers" | "rng":
            return _state(difference, found)
        case "data":
            return _data(difference, around, sharing)
        case "forward_output":
            why = f"same inputs and weights, different output{again}{_form(difference)}{_own_code(around)}"
            return Cause("module_forward", name, why)
        case "forward_input" if event.is_root and event.stage == GENERATION and around.root_left:
            why = (
                f"the model gave the same outputs, then got {got_instead(changed_items(difference), _form(difference))}"
            )
            return Cause("sampling", "responses", why)
        case "forward_input" if event.is_root and enclosing is None and is_reordered(found):
            why = f"{name} gets the same in both runs, call for call, in another order: the order of the batches"
            return Cause("data", name, f"{why}{_form(difference)}", permutation=True)
        case "forward_input" if event.is_root and enclosing is None:
            why = f"everything before is the same, what {name} got is not: code before the model"
            return Cause("data", name, f"{why}{_form(difference)}")
        case "forward_input":
            outer = enclosing or name.rpartition(".")[0] or name
            why = f"everything before {name} is the same, its inputs are not: code of {outer} between its modules"
            why += _behind(around, outer)
            return Cause("module_input", outer, f"{why}{again}{_form(difference)}")
        case "grad_output" if not around.gradient_before:
            return _loss(name, found)
        case "grad_output":
            outer = enclosing or name.rpartition(".")[0] or name
            why = f"the gradients before {name} are the same, the one that arrived is not: the backward of {outer}"
            why += " between its modules, or a hook on gradients there"
            return Cause("module_backward", outer, why)
        case "grad_input":
            return Cause("module_backward", name, "same gradient arrived, a different one was passed on")
        case "param_grad" if event.note:
            why = f"the gradient was the same before it was {event.note}: the reduction over the ranks"
            return Cause("gradient", name, why)
        case "param_grad":
            return _parameter_gradient(event, found)
        case "optimizer":
            return _optimizer(difference, found, parameter)
        case _:
            return Cause("calls", name, f"{name} ({event.kind}) is not the same in both runs: control flow")


def _own_code(around: Context) -> str:
    """Where in a module that has others inside its output became different."""
    last = around.last_inside
    return f"; the modules inside gave the same, {last} last: its own code behind that, or a hook" if last else ""


def _behind(around: Context, outer: str) -> str:
    """The last module before a place in the code of another."""
    for earlier in reversed(around.before):
        if earlier.kind == "forward_output" and earlier.label.startswith(f"{outer}."):
            return f", behind {earlier.label}, or a hook"
        if earlier.label == outer:
            break
    return ", or a hook"


def _loss(name: str, found: RankTrace) -> Cause:
    """A first gradient that differs: what is saved of the stage later tells the loss from its backward."""
    why = "the forward pass is the same, the first gradient is not"
    later = saved_later(found)
    same = ", ".join(later.same[:_SHOWN])
    if later.different:
        tag = later.different[0]
        but = f"{same} is the same, {tag} is not" if same else f"{tag} is not the same"
        return Cause("loss", tag, f"{why}; of what is saved later, {but}: code after the model that makes {tag}")
    if same:
        why += f"; {same}, saved later, is the same: the backward of the code after the model"
        return Cause("loss", name, why)
    return Cause("loss", name, f"{why}: code after the model, or its backward")


def _form(difference: EventDifference) -> str:
    """Which item differs where there are several, and how its form does."""
    changed = changed_items(difference)
    if not changed:
        return ""
    path, one, two = changed[0]
    if not path and len(changed) == 1 and one and two and one[1:3] == two[1:3]:
        return ""  # the whole of what was saved
    path = path or "the whole"
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    if one is None or two is None:
        return f" ({path}{more} only in {'a' if two is None else 'b'})"
    if one[1:3] != two[1:3]:
        return f" ({path}{more}: {one[1]}{list(one[2])} against {two[1]}{list(two[2])})"
    return f" ({path}{more})"


def _parameter(difference: EventDifference) -> str:
    """The full name of the first parameter that differs."""
    role, changed = difference.event.role, changed_items(difference)
    if not changed:
        return difference.event.label
    path = changed[0][0]
    return path if path == role or path.startswith(f"{role}.") else f"{role}.{path}"


def _state(difference: EventDifference, found: RankTrace) -> Cause:
    """Weights, buffers and random states: what can be said of when they began to differ."""
    event = difference.event
    assert found.file is not None
    earlier = last_before(found.file, found.offset, event)
    if earlier is None:
        since = "it differed before the first traced event that shows it"
    else:
        since = f"it was the same at event {earlier.index} (step {earlier.step}, {earlier.stage or 'no stage'})"
    if event.kind == "rng":
        why = "a seed, or a resumed state" if earlier is None else "an extra draw, or another seed, in between"
        return Cause("rng", event.label, f"the random state differs; {since}: {why}")
    what = "the parameter" if event.kind == "weights" else "the buffer"
    changed = len(changed_items(difference))
    more = f" and {changed - 1} more" if changed > 1 else ""
    why = "load or initialisation" if earlier is None else "an update, a weight sync or a load in between"
    return Cause(event.kind, _parameter(difference), f"{what}{more} differs; {since}: {why}{_one_only(difference)}")


def _one_only(difference: EventDifference) -> str:
    path, one, two = next(iter(changed_items(difference)), ("", None, None))
    return "" if one and two or not path else f" ({path} only in {'a' if two is None else 'b'})"


def _data(difference: EventDifference, around: Context, sharing: Sequence[RankTrace]) -> Cause:
    event = difference.event
    kind, why = kind_of_outermost(event, around) or _kind_of_tag(event, around)
    name = _parameter_of_tag(difference) if event.name == "weights" else event.label
    name = event.stage.partition(".")[0] if kind == "module_forward" and event.stage else name
    why += _form(difference)
    permutation, swapped = is_permutation(difference), swapped_ranks(sharing)
    if permutation:
        why += "; the rows are the same in another order"
    if swapped:
        why += f"; ranks {swapped[0]} and {swapped[1]} exchanged theirs"
    if permutation and kind == "sampling":
        kind, why = "data", f"the model's outputs are the same{_form(difference)}, and the rows, in another order"
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
            return "data", "no model is involved: data order, sampler or sharding"
        case "rewards":
            return "rewards", "no model is involved: host code that scores the responses"
        case "advantages":
            return "advantages", "no model is involved: host code between the stages"
        case "grad_norm":
            return "optimizer", "the gradients before it are the same: clipping, or a reduction over them"
        case "weights" if around.update_before:
            return "optimizer", "what the optimizer got is the same, the weights after it are not"
        case "weights":
            return "weights", "an update, a load or the initialisation of the weights"
    if tag == "responses" or (stage == GENERATION and around.root_left):
        same = "the model's outputs" if around.root_left else "everything traced before them"
        why = f"{same} and the recorded random states are the same: the generation's seed, or code after the model"
        return "sampling", why
    if stage is None:
        return "data", "no model is involved: host code that made this value"
    if around.root_left:
        return "loss", f"the outputs of the model in {stage} are the same: code after the model"
    if around.forward_before or event.stage is None:
        return "loss", f"everything before it in {stage} is the same: code that computes it"
    return "data", f"no model ran before it in {stage}: host code that made this value"


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


def _parameter_gradient(event: TraceEvent, found: RankTrace) -> Cause:
    """A module whose backward gives several gradients may have the parameter's first."""
    module = event.label.rpartition(".")[0]
    others, passed_on = 0, False
    for later in found.following:
        same_place = (later.event.step, later.event.stage, later.event.micro_step) == (
            event.step,
            event.stage,
            event.micro_step,
        )
        if not same_place or (later.event.kind, later.event.name) == ("grad_output", module):
            break
        if (later.event.kind, later.event.name, later.status) == ("grad_input", module, "different"):
            return Cause("module_backward", module, "same gradient arrived, different ones came out of its backward")
        others += later.event.kind == "param_grad" and later.event.label.rpartition(".")[0] != module
        passed_on |= later.event.kind in ("grad_output", "grad_input")
    if others and not passed_on:
        why = f"this parameter's gradient and {others} of other modules differ, none that is passed on does: what they"
        return Cause("gradient", event.label, f"{why} held before (zero_grad), accumulation, or their backward alike")
    why = "the gradients before it are the same, this parameter's is not: its module's backward, or accumulation"
    return Cause("gradient", event.label, why)


def _after_backward(difference: EventDifference, found: RankTrace, parameter: str) -> Cause:
    """Gradients that were the same when the backward ended: which run's optimizer got them as they were tells why."""
    changed = changed_items(difference)
    assert found.file is not None
    left = last_items(found.file, found.offset, "param_grad", parameter)
    after = [None if item is None else item[3] for item in changed[0][1:]] if changed else []
    if left is None or not changed:
        why = "the gradients seen before are the same, what the optimizer got is not: a reduction, or code between"
        return Cause("gradient", parameter, why)
    as_left = [run for run, digest in zip("ab", after, strict=True) if digest == left[0][3]]
    if not as_left and len(changed) > 1:
        why = f"the backward left the same gradients, then both runs changed them, and {len(changed)} are not the same"
        return Cause("optimizer", f"{difference.event.role}.grad_norm", f"{why}: their norm, clipping or scaling")
    only = f"in {'b' if as_left == ['a'] else 'a'} alone" if as_left else "differently in both runs"
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    why = f"the backward left the same gradients; {only} something changed this one{more} before the optimizer"
    return Cause("gradient", parameter, why)


def _optimizer(difference: EventDifference, found: RankTrace, parameter: str) -> Cause:
    event = difference.event
    role, _, what = event.label.partition(":")
    match what:
        case "gradients":
            return _after_backward(difference, found, parameter)
        case "grad_norm":
            why = "the gradients are the same, their norm is not: the reduction over them"
            return Cause("optimizer", f"{role}.grad_norm", why)
        case "clipped":
            return Cause("optimizer", parameter, "the gradients are the same before clipping, not after it")
        case "state":
            why = "the gradients are the same, the optimizer's state after them is not"
            why += ": this step, or what wrote to the state or its settings since the one before"
            return Cause("optimizer", parameter, why)
        case "weights":
            why = "the gradients and the optimizer's state are the same, the weights after the update are not"
            return Cause("optimizer", parameter, why)
        case _:
            return Cause("optimizer", event.label, "the gradients before it are the same, the optimizer is not")
