"""transformers.Trainer on a model made from its configuration."""

import os
import sys

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

set_seed(7)
torch.set_num_threads(1)


class Words(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        ids = torch.arange(index, index + 8) % 31
        return {"input_ids": ids, "labels": ids.clone()}


model = GPT2LMHeadModel(GPT2Config(vocab_size=31, n_positions=16, n_embd=16, n_layer=2, n_head=2))
if sys.argv[1:] == ["fault"]:

    def odd(module, args, output):
        return output + int.from_bytes(os.urandom(2), "big") * 1e-7 + 1e-7

    model.transformer.h[1].mlp.c_fc.register_forward_hook(odd)
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4, max_steps=3, logging_steps=1, report_to=[], save_strategy="no", use_cpu=True
)
Trainer(model=model, args=arguments, train_dataset=Words()).train()
