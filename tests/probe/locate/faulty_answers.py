"""The right answer to each planted fault."""

from __future__ import annotations

from dataclasses import dataclass, replace

GENERATE, LOG_PROB, REFERENCE = "actor_generate_sequences", "actor_compute_log_prob", "reference_compute_log_prob"
VALUES, UPDATE, CRITIC = "critic_compute_values", "actor_update", "critic_update"


@dataclass(frozen=True)
class Answer:
    """What has to be named. Without a kind: nothing differs."""

    fault: str
    step: int | None = None
    """None where the fault happens by chance."""
    stage: str | None = None
    event: str = ""
    first_name: str | None = None
    kind: str | None = None
    name: str | None = None
    says: str = ""
    """A part of the explanation, or of the notes."""
    micro_step: int | None = 0
    """None where chance decides."""
    ranks: tuple[int, ...] = (0,)
    permutation: bool | None = None
    swapped: list[int] | None = None
    times: int = 1
    """Repetitions in which it happens at least once, but for one case in a million."""
    every: bool = True
    """Whether each repetition that differs differs there; False where chance decides what comes first."""
    quick: bool = False


def module(fault: str, name: str, stage: str = UPDATE, **more: object) -> Answer:
    return Answer(fault, 0, stage, "forward_output", name, "module_forward", name, "same inputs", **more)


def backward(fault: str, name: str, **more: object) -> Answer:
    return Answer(fault, 0, UPDATE, "grad_input", name, "module_backward", name, "same gradient arrived", **more)


def data(fault: str, step: int, name: str, kind: str = "data", **more: object) -> Answer:
    more = {"permutation": False if kind == "data" else None, **more}
    return Answer(fault, step, None, "data", name, kind, name, **more)


def sampling(fault: str, **more: object) -> Answer:
    said = "then got another token"
    return Answer(fault, None, GENERATE, "forward_input", "actor", "sampling", "responses", said, every=False, **more)


def state(fault: str, step: int, stage: str, event: str, first_name: str, name: str, **more: object) -> Answer:
    return Answer(fault, step, stage, event, first_name, event, name, **more)


def optimizer(fault: str, step: int | None, what: str, name: str, **more: object) -> Answer:
    return Answer(fault, step, UPDATE, "optimizer", f"actor:{what}", "optimizer", name, **{"micro_step": 1, **more})


CONTROL = Answer("none")
REPORTED = [
    replace(CONTROL, quick=True),
    Answer("dropout_redrawn_in_recomputation", quick=True),
    backward("attention_backward", "actor.layers.0.attention.core", quick=True),
    module("autotuning", "actor.layers.1.up", GENERATE, times=20),
    module("uninitialised_rows", "actor.layers.0.moe"),
    state("uninitialised_rotary", 0, GENERATE, "buffers", "actor", "actor.rotary.inv_freq", says="initialisation"),
    state("sleeping_engine", 1, GENERATE, "buffers", "rollout", "rollout.rotary.inv_freq", says="same at event"),
    state("unseeded_value_head", 0, VALUES, "weights", "critic", "critic.head.weight", says="initialisation"),
    module("dropout_by_process", "actor.layers.0.dropout"),
    state("known_dropout_by_process", 0, GENERATE, "rng", "dropout", "dropout", says="a seed"),
    state("resume_without_random_state", 2, GENERATE, "rng", "torch.cpu", "torch.cpu", says="same at event"),
    state("loader_draws", 2, GENERATE, "rng", "torch.cpu", "torch.cpu", says="extra draw", quick=True),
    data("sampler_restarts", 2, "prompts"),
    data("workers_seed_by_clock", 0, "prompts"),
    data("completion_order", 0, "prompts", permutation=True, quick=True),
    Answer("completion_order_of_responses", 0, GENERATE, "data", "responses", "data", "responses", permutation=True),
    sampling("hash_routes_requests", times=8),
    sampling("sampling_by_clock"),
    Answer("other_micro_batches", 0, LOG_PROB, "forward_input", "actor", "calls", "actor", "2, 6 in b", quick=True),
    module("ties_in_the_router", "actor.layers.0.moe.router", GENERATE, times=2),
    optimizer("norm_of_a_set", None, "gradients", "actor.grad_norm", says="their norm", times=10, every=False),
    Answer("norm_of_a_set_saved_at_once", None, UPDATE, "data", "grad_norm", "optimizer", "grad_norm", "clipping", 1,
           times=10, every=False),
    optimizer("clipping_a_set", None, "grad_norm", "actor.grad_norm", times=10, every=False),
    Answer("data_left_in_a_gradient", 1, UPDATE, "optimizer", "actor:gradients", "gradient",
           "actor.layers.0.up.weight", "alone something changed this one", 1, times=20),
    Answer("offload_races", None, UPDATE, "grad_input", "actor.layers.1.attention.core", "module_backward",
           "actor.layers.1.attention.core", micro_step=None, times=6, every=False),
    Answer("reward_times_out", None, None, "data", "rewards", "rewards", "rewards", times=8, every=False),
    module("other_threads", "actor.layers.1.up", GENERATE),
]  # fmt: skip
"""Causes from public reports."""

FURTHER = [
    Answer("a_stage_left_out", 1, REFERENCE, "stage_start", REFERENCE, "calls", REFERENCE, "in a, not in b"),
    Answer("a_stage_entered_again", 1, VALUES, "stage_start", VALUES, "calls", VALUES, "in b, not in a"),
    Answer("a_value_saved_after_its_stage", 1, None, "data", "ref_log_prob", "calls", "ref_log_prob", "in b, not in a"),
    Answer("a_cached_reference", 1, REFERENCE, "forward_input", "reference", "calls", "reference", "in a, not in b"),
    Answer("a_module_called_twice", 0, UPDATE, "forward_input", "actor.layers.1.norm", "calls", "actor.layers.1.norm",
           "(call 1) in b, not in a"),
    Answer("a_module_whose_inside_one_run_hides", 0, None, "not_observed", "actor.layers.1.up", "calls",
           "actor.layers.1.up", "could not be observed in b, not in a"),
    state("a_weight_sync_left_out", 2, GENERATE, "weights", "rollout", "rollout.embed.weight", says="sync"),
    state("a_weight_written_by_numpy", 1, REFERENCE, "weights", "reference", "reference.layers.1.up.weight"),
    state("a_weight_changed_before_the_update", 1, UPDATE, "weights", "actor", "actor.layers.0.up.bias"),
    state("a_weight_changed_inside_a_stage", 0, LOG_PROB, "weights", "actor", "actor.layers.0.up.bias", says="same at"),
    Answer("a_buffer_that_moves", 0, CRITIC, "weights", "critic.rotary.seen", "buffers", "critic.rotary.seen"),
    state("an_augmentation_draws", 1, LOG_PROB, "rng", "numpy", "numpy", says="extra draw"),
    state("a_generator_of_its_own", 1, CRITIC, "rng", "sampler", "sampler", says="extra draw"),
    Answer("code_between_modules", 0, UPDATE, "forward_input", "actor.layers.1.up", "module_input", "actor.layers.1",
           "between its modules"),
    Answer("an_option_of_the_model", 0, VALUES, "forward_input", "critic", "data", "critic", "kwargs.scale"),
    module("a_module", "actor.layers.1.up"),
    replace(module("a_recomputed_module", "actor.layers.1.up"), says="when gradient checkpointing ran it again"),
    Answer("code_after_the_model", 0, UPDATE, "data", "loss", "loss", "loss", "code after the model"),
    data("host_code_between", 0, "advantages", "advantages"),
    Answer("cached_generation", 0, GENERATE, "forward_input", "actor", "calls", "actor", "caching"),
    Answer("the_loss_backward", 0, UPDATE, "grad_output", "actor.head", "loss", "actor.head", "the first gradient"),
    backward("code_between_modules_backward", "actor.layers.1"),
    backward("a_module_backward", "actor.layers.1.up"),
    Answer("a_weight_gradient", 0, UPDATE, "param_grad", "actor.layers.0.attention.v.weight", "gradient",
           "actor.layers.0.attention.v.weight", "its module's backward"),
    Answer("a_gradient_hook", 0, CRITIC, "param_grad", "critic.head.bias", "gradient", "critic.head.bias"),
    optimizer("a_moment", 0, "state", "actor.embed.weight.exp_avg_sq", quick=True),
    optimizer("an_update", 0, "weights", "actor.head.bias"),
    optimizer("a_learning_rate", 1, "state", "actor.groups.0.lr"),
    optimizer("clipped_gradients", 1, "clipped", "actor.head.bias"),
    Answer("a_saved_norm", 0, UPDATE, "data", "grad_norm", "optimizer", "grad_norm", micro_step=1),
    data("a_label_in_a_dictionary", 0, "batch", says="meta.0.id"),
    data("another_dtype", 1, "mask", says="float32[8, 13] against float64[8, 13]"),
]  # fmt: skip
"""Faults of every kind of event."""

_BY_NAME = {answer.fault: replace(answer, ranks=(1,), quick=False) for answer in FURTHER}
_EVERYWHERE = [
    CONTROL,
    *(_BY_NAME[name] for name in ("a_module", "a_recomputed_module", "code_between_modules", "a_module_backward",
                                  "a_weight_gradient", "the_loss_backward")),
]  # fmt: skip
_TRAINED = [
    *(_BY_NAME[name] for name in ("a_moment", "an_update", "clipped_gradients", "a_weight_changed_before_the_update",
                                  "an_augmentation_draws")),
]  # fmt: skip
RANKS = {
    "checkpoint": [
        *(replace(answer, ranks=(0,)) for answer in _EVERYWHERE),
        backward("attention_backward", "actor.layers.0.attention.core"),
        backward("code_between_modules_backward", "actor.layers.1"),
    ],
    "ddp": [
        *_EVERYWHERE,
        *_TRAINED,
        data("swapped", 1, "prompts", ranks=(0, 1), swapped=[0, 1]),
        Answer("communication", 0, UPDATE, "param_grad", "actor.embed.weight", "gradient", "actor.embed.weight",
               "the reduction over the ranks", 0, (0, 1)),
        optimizer("own_clipping", 0, "gradients", "actor.grad_norm", says="their norm", ranks=(0, 1)),
    ],
    "fsdp2": [
        *_EVERYWHERE,
        *_TRAINED,
        optimizer("own_clipping", 0, "gradients", "actor.grad_norm", says="their norm", ranks=(0, 1)),
    ],
    "ddp,checkpoint": _EVERYWHERE,
    "fsdp2,checkpoint": _EVERYWHERE,
}  # fmt: skip
"""Faults of rank 1 alone, or of both, by the kind of training."""
