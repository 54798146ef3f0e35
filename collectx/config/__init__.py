"""The configuration of a run: its schema, and what follows from it. Imports neither torch nor gymnasium.

    plain data --check--> schema --rules--> problems, --warnings--> notes

`kind` selects the implementation: `collectx/env/gym.py` builds `env.kind=gym`. Callers that check a configuration
import `check`, `rules` and `warnings` themselves.
"""

# ruff: noqa: F401, what the other packages import
from collectx.config.derived import (
    ASYNC,
    ELSEWHERE,
    GROUP_BACKENDS,
    NETWORK_BACKENDS,
    REMOTE,
    backend_of,
    is_async,
    is_stacked,
    num_tasks_of,
    num_workers_of,
    rows_per_env,
    surplus_note,
    why_no_nccl,
)
from collectx.config.registry import (
    GROUPS,
    KINDS,
    from_dict,
    group_from_dict,
)
from collectx.config.schema.collector import (
    CollectorConfig,
    EitherCollectorConfig,
)
from collectx.config.schema.env import (
    CountingEnvConfig,
    EnvConfig,
    EnvPoolEnvConfig,
    GymEnvConfig,
    GymVectorEnvConfig,
    TorchrlEnvConfig,
)
from collectx.config.schema.launcher import (
    BackendConfig,
    DevicesConfig,
    LauncherConfig,
    PartResources,
    RayLauncherConfig,
    RpcBackendConfig,
    SlurmLauncherConfig,
    SlurmResources,
    SubmititDelayedLauncherConfig,
    SubmititLauncherConfig,
)
from collectx.config.schema.policy import (
    CnnPolicyConfig,
    CustomPolicyConfig,
    MlpPolicyConfig,
    PolicyConfig,
    QCnnPolicyConfig,
    QMlpPolicyConfig,
    RandomPolicyConfig,
)
from collectx.config.schema.run import (
    RunConfig,
    RunOptions,
    SweepConfig,
    as_dict,
)
from collectx.config.schema.trainer import (
    CustomTrainerConfig,
    DqnTrainerConfig,
    ImpalaTrainerConfig,
    MeterTrainerConfig,
    PpoTrainerConfig,
    TrainerConfig,
)
