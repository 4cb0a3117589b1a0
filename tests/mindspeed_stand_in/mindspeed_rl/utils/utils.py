"""Seeds, and the class through which workers record: on msprobe's SingleSave and PrecisionDebugger, as they are."""

import json
import os
import random
from typing import ClassVar

import numpy as np
import torch

_SWITCHES = {
    "actor_generate_sequences": "actor_infer_dump",
    "actor_compute_log_prob": "actor_train_dump",
    "actor_update": "actor_train_dump",
    "reference_compute_log_prob": "reference_dump",
    "critic_compute_values": "critic_train_dump",
    "critic_update": "critic_train_dump",
}


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)


class MsProbe:
    enabled = False
    config = saver = debugger = None
    hooked: ClassVar[list] = []

    @classmethod
    def config_init(cls, msprobe_config):
        if not msprobe_config.msprobe:
            return
        from msprobe.core import SingleSave
        from msprobe.pytorch import PrecisionDebugger

        cls.config = config = msprobe_config
        cls.saver = SingleSave(config.dump_path)
        if any(getattr(config, switch) for switch in _SWITCHES.values()):
            cls.debugger = PrecisionDebugger(
                task="statistics",
                level="L0",
                step=[f"{config.step_start}-{config.step_end}"],
                dump_path=config.dump_path,
            )
        cls.enabled = True

    @classmethod
    def save_configs(cls, data):
        if cls.enabled and cls.config.configurations_dump:
            with open(os.path.join(cls.config.dump_path, "configurations.json"), "w") as file:
                json.dump(data, file, default=str)

    @classmethod
    def save_data(cls, data):
        if cls.enabled and cls.config.key_data_dump:
            cls.saver.save(data)

    @classmethod
    def _dumps(cls, tag):
        return cls.enabled and cls.debugger is not None and getattr(cls.config, _SWITCHES.get(tag, ""), False)

    @classmethod
    def debugger_start(cls, model=None, tag=None):
        if not cls._dumps(tag):
            return
        service = cls.debugger.service
        service.first_start = model not in cls.hooked
        service.config.dump_path = os.path.join(cls.config.dump_path, tag)
        if tag == "actor_generate_sequences":
            tokens = [cls.config.token_range_start, cls.config.token_range_end]
            cls.debugger.start(model=model, token_range=tokens)
        else:
            cls.debugger.start(model=model)
        if not service.first_start and model not in cls.hooked:
            cls.hooked.append(model)

    @classmethod
    def debugger_stop(cls, tag=None):
        if cls._dumps(tag):
            cls.debugger.stop()
            cls.debugger.service.reset_status()

    @classmethod
    def step(cls):
        if cls.enabled:
            cls.saver.step()
            if cls.debugger is not None:
                cls.debugger.step()
