"""TRL's SFTTrainer on the model in a folder: ``sft.py FOLDER [FAULT]``."""

import os
import sys

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, set_seed
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP
from trl import SFTConfig, SFTTrainer

folder, fault = sys.argv[1], "".join(sys.argv[2:])
set_seed(7)
torch.set_num_threads(1)


class Odd(Qwen2MLP):
    def forward(self, x):
        return super().forward(x) + int.from_bytes(os.urandom(2), "big") * 1e-6 + 1e-6


rows = [{"text": f"add {a} + {b} = {a + b}"} for a in range(4) for b in range(4)]
if fault == "data":
    rows = sorted(rows, key=lambda row: os.urandom(4))
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
if fault == "forward":
    model.model.layers[1].mlp.__class__ = Odd
settings = SFTConfig(
    "out", per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=2, bf16=False, use_cpu=True,
    report_to=[], save_strategy="no", eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=8,
)  # fmt: skip
data = Dataset.from_list(rows)
trainer = SFTTrainer(model, settings, train_dataset=data, eval_dataset=data.select(range(8)))
trainer.train()
with torch.no_grad():
    print(model(torch.tensor([[3, 4, 5]])).logits.sum())
