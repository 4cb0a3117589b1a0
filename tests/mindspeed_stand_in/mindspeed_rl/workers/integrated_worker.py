"""Actor and reference in one worker, whose stages call ``MsProbe`` in the order of the real one."""

import os

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from mindspeed_rl.models.loss.grpo_actor_loss_func import grpo_loss
from mindspeed_rl.utils.utils import MsProbe, seed_all


class Unsteady(torch.nn.Linear):
    """A layer whose sums are added in an order that nothing seeds, in one step: what a check should find."""

    step, at, much = 0, 1, False

    def forward(self, values):
        out = super().forward(values)
        if self.step == self.at:
            out = out * (1 + int.from_bytes(os.urandom(2), "little") * 2.0**-20)
            if self.much:
                own = torch.Generator()
                own.seed()
                out = out + torch.randn(out.shape, generator=own)
        return out


def fault_of(models):
    """Plants what STAND_IN_FAULT names: ``role:module:step``."""
    role, _, rest = os.environ.get("STAND_IN_FAULT", "").partition(":")
    if role in models:
        name, _, step = rest.partition(":")
        module = models[role].get_submodule(name)
        module.__class__, module.at = Unsteady, int(step)
        if role == "rollout":
            module.much = True  # so that other tokens are drawn
        return module
    return None


class IntegratedWorker:
    def __init__(self, config, msprobe_config):
        self.config, self.msprobe_config = config, msprobe_config
        self.rank, self.size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

    def get_rank(self):
        return self.rank

    def initialize(self):
        torch.set_num_threads(1)
        if self.size > 1:
            meet = f"file://{self.msprobe_config.dump_path}.rendezvous"
            torch.distributed.init_process_group("gloo", init_method=meet, rank=self.rank, world_size=self.size)
        training = self.config["megatron_training"]
        if training.get("npu_deterministic"):
            seed_all(training.get("seed", 1234))
        shape = self.config["model"][training["model"]]
        config = Qwen2Config(
            vocab_size=shape["padded_vocab_size"],
            hidden_size=shape["hidden_size"],
            intermediate_size=shape["ffn_hidden_size"],
            num_hidden_layers=shape["num_layers"],
            num_attention_heads=shape["num_attention_heads"],
            num_key_value_heads=shape["num_query_groups"],
            max_position_embeddings=shape["max_position_embeddings"],
        )
        self.model = [Qwen2ForCausalLM(config)]
        self.ref_model = [Qwen2ForCausalLM(config)]
        self.inference_model = Qwen2ForCausalLM(config)
        self.ref_model[0].load_state_dict(self.model[0].state_dict())
        self.optimizer = torch.optim.AdamW(self.model[0].parameters(), lr=self.config["actor_config"]["lr"])
        self.unsteady = fault_of(
            {"actor": self.model[0], "reference": self.ref_model[0], "rollout": self.inference_model}
        )
        sampling = self.config["generate_config"]["sampling_config"]
        self.max_tokens, self.temperature = sampling["max_tokens"], sampling["temperature"]
        self.sampler = torch.Generator()
        self.sampler.manual_seed(sampling["seed"] + self.rank) if "seed" in sampling else self.sampler.seed()
        self.iteration = 0
        MsProbe.config_init(self.msprobe_config)

    def generate_sequences(self):
        batch, length = self.config["megatron_training"]["global_batch_size"], 5
        count = self.config["rl_config"]["n_samples_per_prompt"]
        first = self.iteration * batch + 1000 * self.rank
        prompts = (torch.arange(batch * length).reshape(batch, length) * 7 + first) % 64  # [prompts, 5] int64
        prompts = prompts.repeat_interleave(count, 0)
        self.inference_model.load_state_dict(self.model[0].state_dict())
        if self.unsteady is not None:
            self.unsteady.step = self.iteration
        MsProbe.debugger_start(self.inference_model, tag="actor_generate_sequences")
        tokens = prompts
        with torch.no_grad():
            for _ in range(self.max_tokens):
                logits = self.inference_model(tokens, use_cache=False).logits[:, -1]
                drawn = torch.multinomial((logits / self.temperature).softmax(-1), 1, generator=self.sampler)
                tokens = torch.cat([tokens, drawn], 1)
        responses = list(tokens[:, length:])
        MsProbe.save_data({"responses": responses, "prompts": list(prompts)})
        MsProbe.debugger_stop("actor_generate_sequences")
        self.tokens, self.length = tokens, length

    def compute_ref_log_prob(self):
        MsProbe.debugger_start(model=self.ref_model, tag="reference_compute_log_prob")
        with torch.no_grad():
            self.ref_log_prob = self._log_prob(self.ref_model[0], self.tokens)
        MsProbe.debugger_stop("reference_compute_log_prob")

    def compute_log_prob(self):
        MsProbe.debugger_start(self.model[0], tag="actor_compute_log_prob")
        with torch.no_grad():
            self.old_log_prob = self._log_prob(self.model[0], self.tokens)
        MsProbe.debugger_stop("actor_compute_log_prob")

    def update(self):
        rl = self.config["rl_config"]
        rewards = (self.tokens[:, self.length :] % 5).float().mean(1)  # [samples]
        groups = rewards.reshape(-1, rl["n_samples_per_prompt"])
        advantages = (groups - groups.mean(1, keepdim=True)).reshape(-1, 1).expand_as(self.old_log_prob)
        MsProbe.debugger_start(self.model[0], tag="actor_update")
        self.optimizer.zero_grad()
        size = self.config["actor_config"]["micro_batch_size"]
        parts = list(torch.arange(len(self.tokens)).split(size))
        for part in parts:
            log_prob = self._log_prob(self.model[0], self.tokens[part])
            loss = grpo_loss(log_prob, self.old_log_prob[part], self.ref_log_prob[part], advantages[part],
                             rl["clip_ratio"], rl["init_kl_coef"])  # fmt: skip
            (loss / len(parts)).backward()
        if self.size > 1:
            for parameter in self.model[0].parameters():
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= self.size
        self.optimizer.step()
        self.iteration += 1
        MsProbe.debugger_stop(tag="actor_update")
        MsProbe.step()

    def _log_prob(self, model, tokens):
        """Log-probabilities of the response's tokens: [samples, tokens of the response] float32."""
        logits = model(tokens, use_cache=False).logits[:, self.length - 1 : -1].log_softmax(-1)
        return logits.gather(-1, tokens[:, self.length :, None]).squeeze(-1)
