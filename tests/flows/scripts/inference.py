"""A model that is only used: there is no optimizer."""

import os
import sys

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        noise = int.from_bytes(os.urandom(2), "big") * 1e-9 + 1e-9
        return self.out(x) + (noise if sys.argv[1:] == ["fault"] and number == 2 else 0)


def predict(net, batch):
    with torch.inference_mode():
        return net(batch).softmax(-1)


classifier = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), Head()).eval()
for number in range(4):
    print(predict(classifier, torch.randn(2, 8)).argmax(-1).tolist())
