"""GRPO, started as the real script is: hydra reads the configuration, Ray places the workers where it is asked to."""

import os
import sys
from pathlib import Path

import hydra
import yaml
from mindspeed_rl.config_cls.mindstudio_config import MsprobeConfig
from mindspeed_rl.utils.utils import MsProbe
from mindspeed_rl.workers.integrated_worker import IntegratedWorker
from omegaconf import OmegaConf

ROOT = Path(__file__).absolute().parent.parent


def train(config, make_workers, call):
    msprobe_config = MsprobeConfig(config.get("msprobe_config", {}))
    MsProbe.config_init(msprobe_config)
    MsProbe.save_configs({name: config[name] for name in ("actor_config", "rl_config", "generate_config")})
    workers = make_workers(config, msprobe_config)
    call(workers, "initialize")
    for iteration in range(config["megatron_training"]["train_iters"]):
        for name in ("generate_sequences", "compute_ref_log_prob", "compute_log_prob", "update"):
            call(workers, name)
        sys.stdout.write(f"iteration {iteration}\n")
        sys.stdout.flush()


def here(config, msprobe_config):
    return [IntegratedWorker(config, msprobe_config)]


def call_here(workers, name):
    return [getattr(worker, name)() for worker in workers]


def on_ray(config):
    """The training in a task of Ray's, with an actor for each worker; a judge of rewards has no rank."""
    import ray

    file = config["rl_config"].get("runtime_env_path", "configs/envs/runtime_env.yaml")
    with open(os.path.join(ROOT, file)) as text:
        runtime_env = yaml.safe_load(text)
    if os.environ.get("RAY_ADDRESS") == "local":
        own = {"num_cpus": 4, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    else:
        own = {}
    ray.init(runtime_env=runtime_env, **own)

    def make(config, msprobe_config):
        size = config["rl_config"]["actor_resource"]["num_npus"]
        remote = ray.remote(num_cpus=0.1)(IntegratedWorker)
        judge = ray.remote(num_cpus=0.1)(IntegratedWorker).remote(config, msprobe_config)
        assert ray.get(judge.get_rank.remote()) == 0  # without RANK, and it imports MsProbe
        return [judge, *(
            remote.options(runtime_env={"env_vars": {"RANK": str(rank), "WORLD_SIZE": str(size)}})
            .remote(config, msprobe_config)
            for rank in range(size)
        )]  # fmt: skip

    def call(workers, name):
        return ray.get([getattr(worker, name).remote() for worker in workers[1:]])

    ray.get(ray.remote(num_cpus=0.1)(train).remote(config, make, call))


@hydra.main(config_path="../configs", config_name="train_grpo", version_base=None)
def main(config):
    values = OmegaConf.to_container(config, resolve=True)
    on_ray(values) if os.environ.get("STAND_IN_RAY") else train(values, here, call_here)


if __name__ == "__main__":
    main()
