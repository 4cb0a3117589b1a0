"""A model with a bound ``forward`` of its own, as TRL and accelerate give models, that is not the same each time."""

import os
import types

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
plain = model.forward


def noisy(self, x):
    return plain(x) + int.from_bytes(os.urandom(2), "big") * 1e-6


model.forward = types.MethodType(noisy, model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    loss = model(torch.randn(3, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
