"""TRL's GRPOTrainer on the model in a folder: ``grpo.py FOLDER [--fault NAME] [--set key=value]…``."""

import argparse
import json
import os

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, set_seed
from transformers.models.qwen2.modeling_qwen2 import Qwen2MLP
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--fault")
parser.add_argument("--set", action="append", default=[])
parser.add_argument("--lora", action="store_true")
parser.add_argument("--judge", action="store_true", help="a reward model beside the reward function")
parser.add_argument("--rloo", action="store_true")
parser.add_argument("--weights", help="where the trained weights are written")
parser.add_argument("--line", action="store_true", help="instrument the trainer")
parser.add_argument("--later", action="store_true", help="a trainer of a version that is not known")
arguments = parser.parse_args()
set_seed(7)
torch.set_num_threads(1)


def small():
    return int.from_bytes(os.urandom(2), "big") * 1e-6 + 1e-6


class Odd(Qwen2MLP):
    def forward(self, x):
        return super().forward(x) + small()


class Later(GRPOTrainer):
    """As of a version of TRL that is not known."""

    def _generate(self, texts):
        return super()._generate(texts)


def reward(completions, **columns):
    noise = small() if arguments.fault == "reward" else 0.0
    return [sum(map(len, text.split())) + number % 3 + noise for number, text in enumerate(completions)]


rows = [{"prompt": f"add {a} + {b} =", "answer": a + b} for a in range(4) for b in range(4)]
if arguments.fault == "data":
    rows = sorted(rows, key=lambda row: os.urandom(4))
settings = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "gradient_accumulation_steps": 2,
    "max_completion_length": 6,
    "max_steps": 2,
    "beta": 0.1,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
    "bf16": False,
    "logging_steps": 1,
}
settings.update((key, json.loads(value)) for key, value in (text.split("=", 1) for text in arguments.set))
adapter = None
if arguments.lora:
    from peft import LoraConfig

    adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
functions, tokenizers = [reward], [None]
if arguments.judge:
    functions += [AutoModelForSequenceClassification.from_pretrained(arguments.model, num_labels=1)]
    tokenizers += [AutoTokenizer.from_pretrained(arguments.model)]
Config = RLOOConfig if arguments.rloo else GRPOConfig
trainer = (RLOOTrainer if arguments.rloo else Later if arguments.later else GRPOTrainer)(
    model=AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32),
    reward_funcs=functions,
    reward_processing_classes=tokenizers,
    args=Config(**settings),
    train_dataset=Dataset.from_list(rows),
    eval_dataset=Dataset.from_list(rows[:4]),
    peft_config=adapter,
)
if arguments.fault == "reference":
    trainer.ref_model.model.layers[1].mlp.__class__ = Odd
if arguments.line:
    from probe import instrument

    instrument(trainer)
trainer.train()
if arguments.weights:
    torch.save({"weights": trainer.model.state_dict(), "random": torch.get_rng_state()}, arguments.weights)
