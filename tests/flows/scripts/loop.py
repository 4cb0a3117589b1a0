"""A nanoGPT-like training loop: it imports nothing but torch, and knows nothing of any check."""

import argparse
import os

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--fault", default="none")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--scaler", action="store_true")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--status", type=int, default=0)
parser.add_argument("--weights")
options = parser.parse_args()
torch.manual_seed(1337)
torch.set_num_threads(1)


def noise():
    """A number that is another one in each run, as the order of a reduction may make it."""
    return int.from_bytes(os.urandom(2), "big") * 1e-9 + 1e-9


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 + noise() * 1e3)


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.c_proj(F.gelu(self.c_fc(x)))
        if self.training and options.fault == "forward" and iteration == 1:
            y = y + noise()
        if self.training and options.fault == "backward" and iteration == 1:
            y = Noisy.apply(y)
        return y


class Block(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = MLP(width)

    def forward(self, x):
        q, k, v = self.c_attn(self.ln_1(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, tokens=17, width=16, layers=2, length=8):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width) for _ in range(layers))
        self.lm_head = nn.Linear(width, tokens, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        return logits, None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(self, idx, new):
        for _ in range(new):
            logits, _ = self(idx[:, -8:])
            idx = torch.cat((idx, logits[:, -1].argmax(-1, keepdim=True)), 1)
        return idx


data = torch.randint(0, 17, (512,))


def get_batch():
    starts = torch.randint(0, len(data) - 9, (4,))
    if options.fault == "data" and iteration == 1:
        starts = starts[torch.randperm(4, generator=unseeded)]
    return (torch.stack([data[i + shift : i + shift + 8] for i in starts]) for shift in (0, 1))


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = [model(*get_batch())[1] for _ in range(2)]
    model.train()
    return torch.stack(losses).mean()


unseeded = None
if options.fault == "data":
    unseeded = torch.Generator()
    unseeded.manual_seed(int.from_bytes(os.urandom(4), "big"))
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127 if options.scaler else 1.0, enabled=options.scaler)
step = torch.compile(model, backend="eager") if options.compile else model
for iteration in range(options.steps):
    if iteration % 2 == 0:
        print(f"step {iteration}: loss {estimate_loss():.4f}", flush=True)
    for _ in range(options.accumulate):
        logits, loss = step(*get_batch())
        scaler.scale(loss / options.accumulate * (16 if options.scaler else 1)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if options.fault == "weights" and iteration == 1:
        model.h[1].ln_2.weight.data += noise() * 1e3
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
print(model.generate(torch.zeros(1, 1, dtype=torch.long), 4).tolist(), os.getcwd(), flush=True)
if options.weights:
    torch.save({**model.state_dict(), "rng": torch.get_rng_state(), "draw": torch.rand(3)}, options.weights)
raise SystemExit(options.status)
