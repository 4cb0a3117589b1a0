"""What the stand-in for verl trains: the same files and order of calls as verl, on a tiny model and a CPU.

What is planted stands in STAND_IN_FAULT: ``ref`` and ``actor`` make one module of that model return something else at
step 2, ``weights`` changes some of them a little after that step, ``order`` shuffles the data anew, ``rollout`` draws
tokens at random from the start. With STAND_IN_RAY the worker is an actor of Ray, as in verl.
"""

import json
import os
import random
import uuid

import torch

PROMPTS = 12
WORDS = 24


class Down(torch.nn.Linear):
    noisy = False

    def forward(self, states):
        found = super().forward(states)
        return found * noise() if self.noisy else found


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 2 * width), Down(2 * width, width)

    def forward(self, states):
        return states + self.down(torch.tanh(self.up(states)))


class Model(torch.nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, width)
        self.layers = torch.nn.ModuleList(Block(width) for _ in range(3))
        self.head = torch.nn.Linear(width, WORDS)

    def forward(self, tokens):
        states = self.embed(tokens).cumsum(1) / torch.arange(1, tokens.shape[1] + 1)[:, None]
        for layer in self.layers:
            states = layer(states)
        return self.head(states)


def full_determinism(seed):
    random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)


class Tool:
    """The profiler tool, in verl's order of calls on msprobe's own PrecisionDebugger."""

    def __init__(self, profiler):
        self.on = profiler.enable and profiler.tool == "precision_debugger"
        self.settings = profiler.tool_config.precision_debugger
        self.save_path = profiler.save_path
        self.debugger = None

    def start(self, stage, step, model):
        if not self.on or (self.settings.stages is not None and stage not in self.settings.stages):
            return False
        from msprobe.pytorch import PrecisionDebugger

        path = os.path.join(self.save_path, f"step_{step}", stage)
        os.makedirs(path, exist_ok=True)
        if self.debugger is None:
            self.debugger = PrecisionDebugger(config_path=self.settings.config_path, dump_path=path)
        self.debugger.service.config.dump_path = path
        self.debugger.start(model)
        return True

    def stop(self, started):
        if started:
            self.debugger.stop()
            self.debugger.service.reset_status()


class Worker:
    """Actor, reference and rollout in one process."""

    def __init__(self, config):
        self.config = config
        role = config.actor_rollout_ref
        torch.manual_seed(role.actor.fsdp_config.seed)
        if role.actor.fsdp_config.full_determinism:
            full_determinism(role.actor.fsdp_config.seed)
        self.actor, self.ref = Model(), Model()
        self.ref.load_state_dict(self.actor.state_dict())
        self.optimizer = torch.optim.AdamW(self.actor.parameters(), lr=role.actor.optim.lr)
        self.sampling = torch.Generator()
        self.sampling.manual_seed(role.rollout.seed if os.environ.get("STAND_IN_FAULT") != "rollout" else random_seed())
        self.tool = Tool(role.actor.profiler)
        self.step, self.profiled = 0, False

    def begin(self, step, profiled):
        self.step, self.profiled = step, profiled

    def staged(self, stage, model):
        at = {"ref": "ref_compute_log_prob", "actor": "actor_update"}.get(os.environ.get("STAND_IN_FAULT"))
        model.layers[1].down.noisy = self.step == 2 and at == stage
        started = self.profiled and self.tool.start(stage, self.step, model)

        def end():
            self.tool.stop(started)
            model.layers[1].down.noisy = False

        return end

    @torch.no_grad()
    def generate(self, prompts, greedy=False):
        tokens = torch.tensor(prompts)
        for _ in range(self.config.data.max_response_length):
            odds = torch.softmax(self.actor(tokens)[:, -1], -1)
            drawn = odds.argmax(-1, True) if greedy else torch.multinomial(odds, 1, generator=self.sampling)
            tokens = torch.cat([tokens, drawn], 1)
        return tokens[:, len(prompts[0]) :].tolist()

    def log_prob(self, stage, model, tokens, length, grad=False):
        end = None if grad else self.staged(stage, model)
        try:
            with torch.set_grad_enabled(grad):
                found = torch.log_softmax(model(tokens[:, :-1]), -1).gather(-1, tokens[:, 1:, None])[..., 0]
        finally:
            if end is not None:
                end()
        return found[:, length - 1 :]

    def train(self, prompts, responses, advantages):
        tokens, length = torch.tensor([p + r for p, r in zip(prompts, responses, strict=True)]), len(prompts[0])
        old = self.log_prob("actor_compute_log_prob", self.actor, tokens, length)
        ref = self.log_prob("ref_compute_log_prob", self.ref, tokens, length)
        weights = torch.tensor(advantages)[:, None]
        end = self.staged("actor_update", self.actor)
        try:
            size = self.config.actor_rollout_ref.actor.ppo_mini_batch_size
            for start in range(0, len(tokens), size):
                part = slice(start, start + size)
                new = self.log_prob("", self.actor, tokens[part], length, grad=True)
                ratio = torch.exp(new - old[part])
                kl = torch.exp(ref[part] - new) - (ref[part] - new) - 1
                loss = (-ratio * weights[part] + self.config.actor_rollout_ref.actor.kl_loss_coef * kl).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        finally:
            end()
        if self.step == 2 and os.environ.get("STAND_IN_FAULT") == "weights":
            with torch.no_grad():
                weight, source = self.actor.layers[0].up.weight, torch.Generator().manual_seed(random_seed())
                weight.mul_(1 + 1e-6 * torch.rand(weight.shape, generator=source))
        return loss.item()


def random_seed():
    return int.from_bytes(os.urandom(4), "big")


def noise():
    return 1 + random_seed() / 2**32


def text_of(tokens):
    return "".join(chr(ord("a") + token) for token in tokens)


def dump_generations(folder, step, prompts, responses, scores, keys):
    """Samples sorted by name, with the names beside them, as verl's V1 trainer writes them."""
    os.makedirs(folder, exist_ok=True)
    parts = [key.rsplit("_", 2) for key in keys]
    order = sorted(range(len(keys)), key=lambda i: (parts[i][0], int(parts[i][1]), int(parts[i][2])))
    with open(os.path.join(folder, f"{step}.jsonl"), "w") as file:
        for i in order:
            entry = {"input": text_of(prompts[i]), "output": text_of(responses[i]), "gts": None}
            file.write(json.dumps({**entry, "score": scores[i], "step": step, "uid": keys[i]}) + "\n")


def rewards_of(responses):
    return [sum(token % 5 == 0 for token in response) / len(response) for response in responses]


class TaskRunner:
    def run(self, config):
        if os.environ.get("STAND_IN_RAY"):
            import ray

            remote = ray.remote(num_cpus=0)(Worker).remote(config)
            call = lambda name, *arguments: ray.get(getattr(remote, name).remote(*arguments))  # noqa: E731
        else:
            worker = Worker(config)
            call = lambda name, *arguments: getattr(worker, name)(*arguments)  # noqa: E731
        generator = torch.Generator()
        if os.environ.get("STAND_IN_FAULT") == "order":
            generator.manual_seed(random_seed())
        elif config.data.seed is not None:
            generator.manual_seed(config.data.seed)
        draw = random.Random(3)  # in the place of a data set
        data = [[draw.randrange(WORDS) for _ in range(5)] for _ in range(PROMPTS)]
        size, repeat = config.data.train_batch_size, config.actor_rollout_ref.rollout.n
        trainer, profiled = config.trainer, list(config.global_profiler.steps or [])
        if trainer.val_before_train and trainer.validation_data_dir:
            self.validate(call, data, trainer.validation_data_dir, 0)
        step, total = 0, trainer.total_training_steps or 30
        for _ in range(trainer.total_epochs):
            shuffled = torch.randperm(len(data), generator=generator).tolist() if config.data.shuffle else None
            order = shuffled or list(range(len(data)))
            for start in range(0, len(order) - size + 1, size):
                step += 1
                batch = [data[i] for i in order[start : start + size]]
                names = [str(uuid.uuid4()) for _ in batch]
                prompts = [prompt for prompt in batch for _ in range(repeat)]
                keys = [f"{name}_{n}_0" for name in names for n in range(repeat)]
                call("begin", step, step in profiled)
                responses = call("generate", prompts)
                scores = rewards_of(responses)
                groups = [scores[i : i + repeat] for i in range(0, len(scores), repeat)]
                advantages = [one - sum(group) / repeat for group in groups for one in group]
                print("step", step, "loss", call("train", prompts, responses, advantages), flush=True)
                if trainer.rollout_data_dir:
                    dump_generations(trainer.rollout_data_dir, step, prompts, responses, scores, keys)
                if step >= total:
                    return

    def validate(self, call, data, folder, step):
        responses = call("generate", data, True)
        keys = [f"{uuid.uuid4()}_0_0" for _ in data]
        dump_generations(folder, step, data, responses, rewards_of(responses), keys)
