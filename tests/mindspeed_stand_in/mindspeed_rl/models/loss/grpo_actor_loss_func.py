"""GRPO's loss, of one micro-batch. B samples, R tokens of a response, all float32."""

import torch

from mindspeed_rl.utils.utils import MsProbe


def grpo_loss(log_prob, old_log_prob, ref_log_prob, advantages, clip, coefficient):  # all [B, R]
    ratio = (log_prob - old_log_prob).exp()
    pg_loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages).mean()
    gap = ref_log_prob - log_prob
    kl_loss = (gap.exp() - gap - 1).mean()
    MsProbe.save_data(
        {
            "old_log_prob": old_log_prob,
            "log_prob": log_prob,
            "ref_log_prob": ref_log_prob,
            "advantages": advantages,
            "loss": pg_loss,
            "kl_loss": kl_loss,
        }
    )
    return pg_loss + coefficient * kl_loss
