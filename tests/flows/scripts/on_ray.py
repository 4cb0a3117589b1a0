"""Trains in actors of Ray; each is a rank, as trainers on Ray say it, or none of them says so."""

import argparse
import os

import ray
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--actors", type=int, default=2)
parser.add_argument("--ranks", action="store_true")
parser.add_argument("--fault", action="store_true")
parser.add_argument("--end", choices=["shutdown", "exit", "kill"], default="exit")
options = parser.parse_args()


@ray.remote(num_cpus=0)
class Trainer:
    def __init__(self, rank, size):
        if options.ranks:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
        self.rank = rank
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        if options.fault and rank == size - 1:
            self.model[2].register_forward_hook(lambda *call: call[2] * (1 + int.from_bytes(os.urandom(2), "big")))

    def train(self, step):
        model = self.model
        self.optimizer.zero_grad()
        loss = model(torch.full((4, 8), float(step + self.rank))).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


if os.environ.get("RAY_ADDRESS"):
    ray.init(logging_level="ERROR")
else:
    ray.init(num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1", logging_level="ERROR")
actors = [Trainer.remote(rank, options.actors) for rank in range(options.actors)]
for step in range(3):
    print(step, ray.get([actor.train.remote(step) for actor in actors]))
if options.end == "shutdown":
    ray.shutdown()
elif options.end == "kill":
    for actor in actors:
        ray.kill(actor)
