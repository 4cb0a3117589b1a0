"""What a first difference means: the kind of the first differing event is the cause."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from probe.compare import KeyDataComparison, LayerComparison, LayerDifference
from probe.compare.entries import END_OF_STEP
from probe.language import tell
from probe.locate.data import is_permutation, swapped_ranks
from probe.locate.first import FirstKeyData
from probe.store.reader import Dump


@dataclass(frozen=True, slots=True)
class First:
    """The first event that differs.

    Example:
        >>> First(2, "reference_compute_log_prob", (0,), 0, "forward_output", "reference.model.norm", None, 0).step
        2
    """

    step: int
    stage: str | None
    rank: tuple[int, ...]
    micro_step: int
    event: str
    name: str
    tag: str | None
    call: int

    @property
    def place(self) -> tuple[str | None, str, str]:
        """What stays the same when the same fault shows again, at another step or on another rank."""
        return (self.stage, self.event, self.name)

    def as_dict(self) -> dict[str, Any]:
        """For ``verdict.json``."""
        return {**asdict(self), "rank": list(self.rank)}


@dataclass(frozen=True, slots=True)
class Cause:
    """Why it differs.

    Example:
        >>> Cause("none", None, "no difference was found").as_dict()["permutation"] is None
        True
    """

    kind: str
    name: str | None
    explanation: str
    permutation: bool | None = None
    ranks_swapped: tuple[int, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For ``verdict.json``."""
        swapped = list(self.ranks_swapped) if self.ranks_swapped else None
        return {**asdict(self), "ranks_swapped": swapped}


def cause_of_layers(
    first: FirstKeyData | None, layers: LayerComparison, runs: tuple[str, str] = ("c", "d")
) -> tuple[First, Cause] | None:
    """The first differing module and what it means; None when no dumped layer differs.

    Args:
        first: The first differing key data, for the micro-step.
        layers: What comparing the layer dumps gave.
        runs: Names of the two runs.
    """
    difference = layers.first
    if difference is None:
        return None
    window, event = difference.window, difference.event
    micro_step = window.micro_step
    if not micro_step and first is not None and first.stage == window.stage:
        micro_step = first.entry.record.micro_step
    place = First(
        window.step,
        window.stage or None,
        tuple(layers.ranks_of_first),
        micro_step,
        event.kind,
        difference.full_name,
        None,
        event.call,
    )
    if difference.status != "different":
        there, not_there = runs if difference.status == "missing" else runs[::-1]
        why = tell(
            "{name} was called in {there}, not in {not_there}: caching, batching or control flow",
            name=place.name,
            there=there,
            not_there=not_there,
        )
        return place, Cause("calls", place.name, why)
    return place, _layer_cause(difference, layers)


def _layer_cause(difference: LayerDifference, layers: LayerComparison) -> Cause:
    name, enclosing = difference.full_name, difference.enclosing
    if difference.event.operation and difference.event.kind == "forward_input":
        return _operation_input_cause(difference)
    match difference.event.kind:
        case "weights" if difference.event.call:
            return Cause("weights", name, tell("the parameter differs since its module last ran: an update in between"))
        case "weights":
            why = tell("the parameter differs before any module ran: an earlier update, load or init")
            return Cause("weights", name, why)
        case "forward_output":
            return Cause(
                "module_forward", name, tell("{same}, different output", same=_what_is_the_same(difference, layers))
            )
        case "forward_input" if _follows_a_drawn_token(difference):
            why = tell(
                "the model gave the same outputs, then got another token: the generation's seed, or code between them"
            )
            return Cause("sampling", "responses", why)
        case "forward_input" if difference.first_in_window:
            return Cause(
                "data", name, tell("the first module entered already got different inputs: code before the model")
            )
        case "forward_input":
            why = tell(
                "everything before {name} is the same, its inputs are not: code of {enclosing} between its modules",
                name=name,
                enclosing=enclosing,
            )
            return Cause("module_input", enclosing, why)
        case "grad_input":
            return Cause("module_backward", name, tell("same gradient arrived, a different one was passed on"))
        case "grad_output" if difference.first_in_window:
            return Cause(
                "loss", name, tell("the forward pass is the same, the first gradient is not: code after the model")
            )
        case "grad_output":
            why = tell(
                "the gradients before {name} are the same, the one that arrived is not: the backward of {enclosing}",
                name=name,
                enclosing=enclosing,
            )
            return Cause("module_backward", enclosing, why)
        case _:
            module = name.rpartition(".")[0]
            if _passes_on_another_gradient(module, difference, layers):
                return Cause(
                    "module_backward", module, tell("same gradient arrived, different ones came out of its backward")
                )
            why = tell(
                "the gradients before it are the same, this parameter's is not: its module's backward, or accumulation"
            )
            return Cause("gradient", name, why)


def _what_is_the_same(difference: LayerDifference, layers: LayerComparison) -> str:
    """What is known to be the same of a module or operation whose output differs."""
    prefix = f"{difference.event.name}."
    doubtful = any(key == difference.window.key and own.startswith(prefix) for key, own in layers.doubtful)
    return tell("same inputs") if difference.event.operation or doubtful else tell("same inputs and weights")


def _operation_input_cause(difference: LayerDifference) -> Cause:
    """An operation whose inputs differ: at level L1 nothing else shows weights and what no dumped operation made."""
    name, inside = difference.full_name, difference.event.parent is not None
    inputs = tell("its inputs ({items}) are not", items=", ".join(difference.items[:3]))
    where = (
        tell("code of {enclosing}", enclosing=difference.enclosing) if inside else tell("code between the operations")
    )
    why = tell(
        "everything before {name} is the same, {inputs}: a weight, a number, or {where}",
        name=name, inputs=inputs, where=where,
    )  # fmt: skip
    if difference.first_in_window:
        return Cause(
            "data",
            name,
            tell(
                "nothing was dumped before {name}, {inputs} the same: a weight, or code before it",
                name=name,
                inputs=inputs,
            ),
        )
    return Cause("module_input", difference.enclosing if inside else name, why)


def _passes_on_another_gradient(module: str, difference: LayerDifference, layers: LayerComparison) -> bool:
    """Whether the module whose parameter got another gradient also passed another one on, in the same call."""
    return any(
        other.window == difference.window
        and (other.event.kind, other.full_name, other.event.call) == ("grad_input", module, difference.event.call)
        for other in layers.differences
    )


def _follows_a_drawn_token(difference: LayerDifference) -> bool:
    """Whether it is the model's own input in generation that differs, after earlier passes that did not."""
    later_pass = difference.opens_pass and not difference.first_in_window
    return later_pass and difference.window.stage == "actor_generate_sequences"


def cause_of_key_data(
    first: FirstKeyData, comparison: KeyDataComparison, a: Dump, b: Dump, layers_equal: bool
) -> tuple[First, Cause]:
    """What the first differing key data means when no layer names a module.

    Args:
        first: The first differing entry.
        comparison: Where it was found.
        a: One run.
        b: The other.
        layers_equal: Whether the stage's layers were dumped in two further runs that differed here too, and are equal.
    """
    entry, record = first.entry, first.entry.record
    event = "weights" if record.tag == "weights" else "data"
    name = record.path if record.tag == "weights" else record.tag
    place = First(entry.step, first.stage, first.ranks, record.micro_step, event, name, record.tag, record.call)
    runs = tell("a, not in b") if entry.status == "missing" else tell("b, not in a")
    if record.tag == END_OF_STEP:
        return place, Cause("calls", "step", tell("step {step} was finished in {runs}", step=entry.step, runs=runs))
    if entry.status != "different":
        return place, Cause(
            "calls",
            record.tag,
            tell("{tag} was saved in {runs}: batching, caching or control flow", tag=record.tag, runs=runs),
        )
    if entry.a is not None and entry.b is not None and entry.a.stage != entry.b.stage:
        return place, Cause(
            "calls", record.tag, tell("{tag} is {problem}: control flow", tag=record.tag, problem=entry.problem)
        )
    kind, explanation = _kind_of_tag(record.tag, first.stage, layers_equal)
    permutation = is_permutation(entry, a, b)
    swapped = swapped_ranks(entry, comparison)
    if permutation:
        explanation += tell("; the rows are the same in another order")
    if swapped:
        explanation += tell("; ranks {one} and {two} exchanged theirs", one=swapped[0], two=swapped[1])
    if entry.harmless:
        explanation += tell(
            "; only {harmless} differ: whether anything followed from it, only a trace can show",
            harmless=entry.harmless,
        )
    data = kind == "data" or permutation or swapped is not None
    return place, Cause(kind, name, explanation, permutation if data else None, swapped)


def _kind_of_tag(tag: str, stage: str | None, layers_equal: bool) -> tuple[str, str]:
    by_tag = {
        "prompts": ("data", tell("no model is involved: data order, sampler or sharding")),
        "rewards": ("rewards", tell("no model is involved: host code that scores the responses")),
        "advantages": ("advantages", tell("no model is involved: host code between the stages")),
        "weights": ("weights", tell("an update, a load or the initialisation of the weights")),
        "grad_norm": ("optimizer", tell("clipping or a reduction over the gradients")),
    }
    if tag in by_tag and not (layers_equal and tag == "weights"):
        return by_tag[tag]
    if tag == "weights":
        why = tell(
            "the stage's forward and backward are the same: the optimizer, or what changed the gradients before it"
        )
        return "optimizer", why
    if stage is None:
        return "data", tell("no model is involved: host code that made this value")
    if not layers_equal:
        return "none", tell("no layers were compared that show which module of {stage}", stage=stage)
    if stage == "actor_generate_sequences":
        return "sampling", tell(
            "the stage's layers are the same: the generation's seed, or code between model and token"
        )
    return "loss", tell("the layers of {stage} are the same: code after the model", stage=stage)
