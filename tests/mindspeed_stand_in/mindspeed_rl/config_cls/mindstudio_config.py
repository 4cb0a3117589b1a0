"""The section ``msprobe_config``: known keys only."""


class MsprobeConfig:
    def __init__(self, values):
        self.msprobe = False
        self.dump_path = "./msprobe_dump"
        self.key_data_dump = False
        self.configurations_dump = False
        self.actor_train_dump = False
        self.actor_infer_dump = False
        self.token_range_start = 0
        self.token_range_end = 0
        self.reference_dump = False
        self.critic_train_dump = False
        self.step_start = 0
        self.step_end = 0
        for key, value in values.items():
            if not hasattr(self, key):
                raise ValueError(f"The key: {key} is missing")
            setattr(self, key, value)
