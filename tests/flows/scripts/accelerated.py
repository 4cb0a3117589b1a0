"""A loop with Hugging Face accelerate: gradient accumulation, a scheduler, a prepared loader."""

import os
import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
features, labels = torch.randn(32, 8), torch.randint(0, 3, (32,))
if sys.argv[1:] == ["data"]:
    features[17] += int.from_bytes(os.urandom(2), "big") * 1e-6 + 1e-6
loader = DataLoader(TensorDataset(features, labels), batch_size=4, shuffle=True)
net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
for batch, target in loader:
    with accelerator.accumulate(net):
        loss = nn.functional.cross_entropy(net(batch), target)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
accelerator.print(loss.item())
