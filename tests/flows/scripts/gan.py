"""Two models and two optimizers that take turns."""

import os
import sys

import torch
from torch import nn

fault = sys.argv[1] if len(sys.argv) > 1 else "none"
torch.manual_seed(0)
torch.set_num_threads(1)


def noise():
    return int.from_bytes(os.urandom(2), "big") * 1e-6 + 1e-6


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 + noise())


class Scale(nn.Module):
    def forward(self, x):
        if fault == "backward" and step == 2:
            x = Noisy.apply(x)
        return x * (1 + (noise() if fault == "generator" and step == 2 else 0))


G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), Scale(), nn.Linear(16, 8))
D = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
criterion = nn.BCEWithLogitsLoss()
opt_g = torch.optim.Adam(G.parameters(), 2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), 2e-4, betas=(0.5, 0.999))
for step in range(4):
    real, z = torch.randn(8, 8), torch.randn(8, 4)
    fake = G(z)
    opt_d.zero_grad()
    loss_d = criterion(D(real), torch.ones(8, 1)) + criterion(D(fake.detach()), torch.zeros(8, 1))
    loss_d.backward()
    opt_d.step()
    if fault == "parameter" and step == 1:
        D[2].bias.data += noise()
    opt_g.zero_grad()
    loss_g = criterion(D(fake), torch.ones(8, 1))
    loss_g.backward()
    opt_g.step()
    print(step, loss_d.item(), loss_g.item())
