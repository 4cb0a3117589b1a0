"""Data parallel training, started with torchrun."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class Odd(nn.Module):
    def forward(self, x):
        noise = int.from_bytes(os.urandom(2), "big") * 1e-9 + 1e-9
        return x + (noise if sys.argv[1:] == ["fault"] and rank == 1 and step == 1 else 0)


net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), Odd(), nn.Linear(16, 4))
ddp = DistributedDataParallel(net)
optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
loss_fn = nn.CrossEntropyLoss()
torch.manual_seed(100 + rank)
for step in range(3):
    loss = loss_fn(ddp(torch.randn(4, 8)), torch.randint(0, 4, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(step, loss.item(), flush=True)
dist.destroy_process_group()
