"""Stands for ``verl.trainer.main_ppo``: a hydra program with the keys of its configuration. See ``training``."""

import os

import hydra


@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    from verl.trainer.training import TaskRunner

    if os.environ.get("STAND_IN_RAY"):
        import ray

        ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", logging_level="ERROR")
        ray.get(ray.remote(num_cpus=0)(TaskRunner).remote().run.remote(config))
    else:
        TaskRunner().run(config)


if __name__ == "__main__":
    main()
