"""Sample Factory's sampler: rollout workers whose envs are in two halves, one of which steps while a policy worker, a
process of its own, acts for the other one; or all of it in one process. Without normalisation, values included."""

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Generator
from functools import partial
from typing import Any

import torch
from sample_factory.algo.sampling.simplified_sampling_api import SyncSamplingAPI
from sample_factory.algo.utils.context import global_model_factory
from sample_factory.algo.utils.env_info import extract_env_info
from sample_factory.algo.utils.make_env import make_env_func_batched
from sample_factory.algo.utils.model_sharing import ParameterServer
from sample_factory.algo.utils.rl_utils import samples_per_trajectory
from sample_factory.algo.utils.shared_buffers import BufferMgr
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.model.encoder import Encoder
from sample_factory.utils.attr_dict import AttrDict
from sample_factory.utils.gpu_utils import set_global_cuda_envvars
from sample_factory.utils.utils import log

from benchmarks import fresh
from benchmarks.bare import make_one
from benchmarks.cases import CASES, Case


class Ballast(Encoder):
    """Does nearly nothing with an observation."""

    def __init__(self, cfg: Any, _space: Any):
        super().__init__(cfg)

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        return observation["obs"][:, :4].to(torch.float32)

    def get_out_size(self) -> int:
        return 4


def measuring(case: str, side: str, **_: Any) -> Generator[dict[str, Any], float, None]:
    """Measures frames from one trajectory to another, and seconds."""
    group = CASES[case]
    log.setLevel("WARNING")
    register_env(case, partial(_make, group))
    if group.policy == "ballast":
        global_model_factory().register_encoder_factory(Ballast)
    folder = tempfile.mkdtemp()
    words = [*_words(group, serial=side == "serial"), f"--env={case}", f"--train_dir={folder}"]
    cfg = parse_full_cfg(parse_sf_args(words)[0], words)
    env = make_env_func_batched(cfg, AttrDict(worker_index=0, vector_index=0, env_id=0))
    info = extract_env_info(env, cfg)
    set_global_cuda_envvars(cfg)
    buffers = BufferMgr(cfg, info)
    server = ParameterServer(0, buffers.policy_versions, cfg.serial_mode)
    if cfg.serial_mode:
        # Otherwise the learner's.
        server.init(create_actor_critic(cfg, info.obs_space, info.action_space), 0, torch.device("cpu"))
    sampler = SyncSamplingAPI(cfg, info, buffers, {0: server})
    sampler.start()
    try:
        yield from fresh.turns(
            lambda: samples_per_trajectory(sampler.get_trajectories_sync()), processes=1 if cfg.serial_mode else "2 + 1"
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for child in multiprocessing.active_children():
            child.kill()
        # Its threads would wait for ever. The resource tracker survives, and removes the semaphores.
        os._exit(0)


def _words(case: Case, serial: bool) -> list[str]:
    workers = 1 if serial else case.workers
    envs = case.workers * case.num_envs // workers
    return [
        *("--experiment=peers", "--device=cpu", "--normalize_input=False", "--use_rnn=False", "--seed=0"),
        *("--decorrelate_envs_on_one_worker=False", "--log_to_file=False"),
        *(f"--serial_mode={serial}", f"--async_rl={not serial}", f"--num_workers={workers}"),
        *(f"--num_envs_per_worker={envs}", f"--worker_num_splits={1 if serial or envs == 1 else 2}"),
        *(f"--rollout={min(case.steps, 32)}", f"--batch_size={envs * 32}", "--batched_sampling=False"),
        *("--encoder_mlp_layers", "64", "64", "--nonlinearity=tanh" if case.policy == "mlp" else "--nonlinearity=relu"),
        *("--encoder_conv_architecture=convnet_atari", "--encoder_conv_mlp_layers", "512"),
        f"--obs_scale={255.0 if case.policy == 'cnn' else 1.0}",
    ]


def _make(case: Case, *_: Any, **__: Any) -> Any:
    return make_one(case)


if __name__ == "__main__":
    fresh.serve_turns(measuring)
