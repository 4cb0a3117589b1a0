"""A small PPO-like training through the public Probe API, whose parts faults replace."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from probe import Probe

VOCAB, HIDDEN, HEADS, ROWS, PROMPT, RESPONSE = 13, 16, 2, 8, 3, 3
Tensor = torch.Tensor


class Rotary(nn.Module):
    """Cosines and sines by position, from a buffer that no state dict holds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 10.0 ** -torch.arange(0, 1, 2 * HEADS / HIDDEN), persistent=False)

    def forward(self, length: int) -> tuple[Tensor, Tensor]:
        angles = torch.outer(torch.arange(length, dtype=torch.float32), self.inv_freq).repeat(1, 2)
        return angles.cos(), angles.sin()


class Core(nn.Module):
    """Causal attention over [rows, heads, length, head size]."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
        self.core = Core()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        def heads(y: Tensor) -> Tensor:
            return y.unflatten(-1, (HEADS, -1)).transpose(1, 2)

        def turned(y: Tensor) -> Tensor:
            one, two = y.chunk(2, -1)
            return y * cos + torch.cat((-two, one), -1) * sin

        mixed = self.core(turned(heads(self.q(x))), turned(heads(self.k(x))), heads(self.v(x)))
        return self.o(mixed.transpose(1, 2).flatten(2))


class Router(nn.Module):
    """Chooses one of four experts for each token. Scores in halves: ties are common, the first expert wins."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, HIDDEN))

    def order(self) -> Tensor:
        return torch.arange(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = x @ self.weight.T
        order = self.order()
        chosen = order[(scores.detach() * 2).round()[..., order].argmax(-1)]
        return chosen, scores.softmax(-1).gather(-1, chosen[..., None])


class Experts(nn.Module):
    """A projection for each expert; rows of tokens that no expert computes are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, HIDDEN, HIDDEN) * 0.1)

    def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for expert in range(3):  # the fourth does nothing
            mine = chosen == expert
            result[mine] = (x[mine] @ self.weight[expert]).tanh()
        return result


class Moe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = Router(), Experts()

    def forward(self, x: Tensor) -> Tensor:
        chosen, weight = self.router(x)
        return self.experts(x, chosen) * weight


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.dropout = nn.LayerNorm(HIDDEN), Attention(), nn.Dropout(0.1)
        self.up, self.moe = nn.Linear(HIDDEN, HIDDEN), Moe()

    def between(self, x: Tensor) -> Tensor:
        """Code between the modules."""
        return x

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm(x), cos, sin))
        return x + self.moe(self.up(self.between(x)))


class Model(nn.Module):
    def __init__(self, outputs: int, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.embed, self.rotary = nn.Embedding(VOCAB, HIDDEN), Rotary()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(HIDDEN, outputs)

    def forward(self, tokens: Tensor, **options: Any) -> Tensor:
        x = self.embed(tokens)
        cos, sin = self.rotary(tokens.shape[1])
        for layer in self.layers:
            again = self.recompute and torch.is_grad_enabled()
            x = checkpoint(layer, x, cos, sin, use_reentrant=False) if again else layer(x, cos, sin)
        return self.head(x)


class Training:
    """Everything that a fault may replace is a method or an attribute.

    Args:
        run: ``a``, ``b``, ``c`` or ``d``.
        attempt: Which repetition of the same training this is, for faults that do not always happen.
        kind: ``plain``, ``checkpoint``, ``ddp``, ``fsdp2``, or two of them with a comma.
        rank: This process.
    """

    steps = 3
    micro_batches = (4, 4)

    def __init__(self, run: str, attempt: int, kind: str, rank: int = 0) -> None:
        self.run, self.attempt, self.kind, self.rank = run, attempt, kind.split(","), rank
        self.odd = run in ("b", "d")
        torch.manual_seed(1), random.seed(2), np.random.seed(3)
        recompute = "checkpoint" in self.kind
        self.actor, self.critic = Model(VOCAB, recompute), Model(1, recompute)
        self.reference = copy.deepcopy(self.actor).eval().requires_grad_(False)
        self.rollout: Model | None = None
        self.generators: dict[str, Any] = {}
        self.probe: Any = None

    def prepare(self, probe: Probe) -> None:
        """Wraps the models for several ranks, and attaches them."""
        self.called: dict[str, Any] = {"actor": self.actor, "critic": self.critic}
        for role, model in list(self.called.items()):
            if "ddp" in self.kind:
                self.called[role] = nn.parallel.DistributedDataParallel(model)
            elif "fsdp2" in self.kind:
                from torch.distributed.fsdp import fully_shard

                for layer in model.layers:
                    fully_shard(layer)
                fully_shard(model)
        self.optimizers = {role: self.optimizer(model) for role, model in self.called.items()}
        self.probe = probe
        probe.attach(**self.called, reference=self.reference, rollout=self.rollout)
        probe.attach_rng(**self.generators)
        torch.manual_seed(10 + self.rank)

    # ---- what faults replace ----

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def begin_step(self, step: int) -> None:
        """Before anything of a step."""

    def prompts(self, step: int) -> Tensor:
        return torch.randint(VOCAB, (ROWS, PROMPT), generator=torch.Generator().manual_seed(100 * self.rank + step))

    def sampling_seed(self, step: int) -> int:
        return 1000 + step

    def shown(self, sequences: Tensor) -> Tensor:
        """What generation gives the model."""
        return sequences

    def finish_rows(self, sequences: Tensor) -> Tensor:
        return sequences

    def rewards(self, step: int, sequences: Tensor) -> Tensor:
        return (sequences[:, PROMPT:] % 3).float().mean(-1)

    def advantages(self, rewards: Tensor, values: Tensor) -> Tensor:
        return rewards - rewards.mean() - 0.1 * values.mean(-1)

    def batches(self, role: str) -> tuple[int, ...]:
        """Rows that go through a model together where no gradient is needed."""
        return (ROWS,)

    def options(self, role: str) -> dict[str, Any]:
        return {}

    def loss(self, step: int, log_prob: Tensor, advantages: Tensor) -> Tensor:
        return -(log_prob.mean(-1) * advantages).mean()

    def after_backward(self, step: int, role: str) -> None:
        """When all gradients of a role are there."""

    def clip(self, step: int, role: str) -> Any:
        return nn.utils.clip_grad_norm_(self.called[role].parameters(), 0.1)

    def between_stages(self, step: int, following: str) -> None:
        """Before a stage."""

    # ---- the training ----

    def train(self, probe: Probe) -> None:
        self.prepare(probe)
        for step in range(self.steps):
            self.begin_step(step)
            prompts = self.prompts(step)
            probe.save({"prompts": prompts})
            if self.rollout is not None:
                self.sync(step)
            sequences = self.generate(step, prompts)
            rewards = self.rewards(step, sequences)
            probe.save({"rewards": rewards})
            self.evaluate(step, "actor_compute_log_prob", "actor", sequences)
            self.evaluate(step, "reference_compute_log_prob", "reference", sequences)
            values = self.evaluate(step, "critic_compute_values", "critic", sequences)
            advantages = self.advantages(rewards, values)
            probe.save({"advantages": advantages})
            self.update(step, "actor", sequences, advantages)
            self.update(step, "critic", sequences, rewards)
            probe.step()
            if probe.finished:
                break

    def sync(self, step: int) -> None:
        self.rollout.load_state_dict(self.actor.state_dict())

    def generate(self, step: int, prompts: Tensor) -> Tensor:
        self.between_stages(step, "actor_generate_sequences")
        model = self.rollout or self.actor
        generator = torch.Generator().manual_seed(self.sampling_seed(step))
        sequences = prompts
        with self.probe.stage("actor_generate_sequences"), torch.no_grad():
            model.eval()
            for _ in range(RESPONSE):
                probabilities = model(self.shown(sequences))[:, -1].softmax(-1)
                sequences = torch.cat((sequences, torch.multinomial(probabilities, 1, generator=generator)), 1)
            sequences = self.finish_rows(sequences)
            self.probe.save({"responses": sequences[:, PROMPT:]})
            model.train()
        return sequences

    def evaluate(self, step: int, stage: str, role: str, sequences: Tensor) -> Tensor:
        self.between_stages(step, stage)
        model = getattr(self, role)
        tag = {"actor": "old_log_prob", "reference": "ref_log_prob", "critic": "values"}[role]
        with self.probe.stage(stage), torch.no_grad():
            model.eval()
            parts = [model(rows, **self.options(role)) for rows in sequences.split(self.batches(role))]
            output = torch.cat(parts)
            result = output.squeeze(-1) if role == "critic" else log_probs(output, sequences)
            self.probe.save({tag: result})
            model.train(role != "reference")
        return result

    def update(self, step: int, role: str, sequences: Tensor, targets: Tensor) -> None:
        self.between_stages(step, f"{role}_update")
        optimizer, at = self.optimizers[role], 0
        for micro_step, size in enumerate(self.micro_batches):
            rows, wanted = sequences[at : at + size], targets[at : at + size]
            at += size
            with self.probe.stage(f"{role}_update", micro_step=micro_step):
                output = self.called[role](rows)
                if role == "actor":
                    log_prob = log_probs(output, rows)
                    loss = self.loss(step, log_prob, wanted)
                    self.probe.save({"log_prob": log_prob, "loss": loss})
                else:
                    loss = (output.squeeze(-1).mean(-1) - wanted).square().mean()
                    self.probe.save({"loss": loss})
                loss.backward()
                if at == ROWS:
                    self.after_backward(step, role)
                    norm = self.clip(step, role)
                    optimizer.step()
                    optimizer.zero_grad()
                    self.probe.save({"grad_norm": norm.full_tensor() if hasattr(norm, "full_tensor") else norm})


def log_probs(logits: Tensor, sequences: Tensor) -> Tensor:
    """The log-probability of each token after the prompt."""
    all_of_them = logits[:, PROMPT - 1 : -1].log_softmax(-1)
    return all_of_them.gather(-1, sequences[:, PROMPT:, None]).squeeze(-1)
