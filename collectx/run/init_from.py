"""`policy.init_from`: a run begins with the weights of another run or of a file.

    run folder or file --> snapshot/init.pt --> policy, critic     before the workers start
                                        \\--> collectx reproduce

Afterwards nothing reads the other folder: a resume continues from a checkpoint, and all others from this run folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from collectx.checkpoints import Checkpoint, Checkpoints
from collectx.config.problem import counted
from collectx.config.schema.policy import TrainablePolicyConfig
from collectx.errors import ConfigError, DamagedFileError, summary_of
from collectx.policy.flat_weights import FlatWeights
from collectx.run.folder import saved_config
from collectx.run.folder.files import write_atomically, write_json
from collectx.run.folder.layout import RunFolder

# How many tensors that do not fit an error names.
_NAMED = 4


class InitialWeights:
    """The weights that `policy.init_from` names. Call `load_policy`, make the trainer, then call `load_critic` and
    `write`. All raise `ConfigError` if the weights are missing or damaged, or do not fit.

    Args:
        module: the new policy, which gets the weights.
        trainer_kind: the critic is only taken from a run of the same kind.
    """

    def __init__(self, cfg: TrainablePolicyConfig, module: Any, trainer_kind: str):
        assert cfg.init_from is not None
        self._cfg, self._module = cfg, module
        self._path = Path(cfg.init_from).absolute()
        if not isinstance(module, nn.Module):
            raise ConfigError(f"policy.init_from={cfg.init_from} cannot be used: the policy has no weights.")
        self._states: dict[str, Any] = {}
        self._left_out: list[str] = []
        self._facts: dict[str, Any] = {"path": str(self._path)}
        if self._path.is_dir():
            self._read_run(trainer_kind)
        elif self._path.is_file():
            self._read_file()
        else:
            raise ConfigError(
                f"policy.init_from={cfg.init_from} does not exist. Name a run folder, or a file of weights."
            )

    def load_policy(self) -> None:
        """Loads the policy's weights."""
        self._module.load_state_dict(self._fitting("policy", self._module.state_dict()))

    def load_critic(self, trainer: Any) -> None:
        """Loads the critic's weights, if there are some and the trainer has a critic."""
        if "critic" in self._states and hasattr(trainer, "load_critic"):
            trainer.load_critic(self._fitting("critic", trainer.critic.state_dict()))
            self._facts["critic"] = True
        else:
            self._states.pop("critic", None)

    def write(self, run_folder: RunFolder) -> dict[str, Any]:
        """Copies the weights to the run folder, and writes to `snapshot/meta.json` where they are from. Returns the
        fields of the event that says so."""
        write_atomically(run_folder.initial, lambda file: torch.save(self._states, file))
        facts = {**self._facts, "left_out": self._left_out}
        write_json(run_folder.newest_meta, {**run_folder.read_meta(), "init_from": facts})
        return facts

    def _read_run(self, trainer_kind: str) -> None:
        folder, weights = RunFolder(self._path), self._cfg.init_weights
        saved_config.check_folder(folder)
        checkpoints = Checkpoints(folder.checkpoints)
        found: tuple[dict[str, Any], dict[str, Any]] | None = None
        if weights == "best":
            if (best := checkpoints.best()) is None:
                raise ConfigError(f"{self._path} contains no best checkpoint. Use policy.init_weights=newest.")
            found = _checkpoint(Checkpoint(best))
        elif not folder.policy.is_file():
            found, problems = checkpoints.newest(_checkpoint)
            if found is None:
                missing = f"{self._path} contains no weights. A run saves them at its end, and in each checkpoint."
                raise ConfigError(checkpoints.no_intact(problems) if problems else missing)
        if found is None:
            trainer = _load(folder.final_checkpoint) if folder.final_checkpoint.is_file() else {}
            self._states["policy"] = _load(folder.policy)
            counts = folder.read_result() or {}
        else:
            counts, state = found
            trainer = state["trainer"] or {}
            self._states["policy"] = trainer.get("policy") or self._unflattened(state["collector"]["weights"])
        source = saved_config.read_config(folder.newest_config)
        if (source.get("trainer") or {}).get("kind") == trainer_kind and "critic" in trainer:
            self._states["critic"] = trainer["critic"]
        kept: dict[str, Any] = {name: counts[name] for name in ("batches", "frames") if name in counts}
        self._facts |= {"weights": weights, **kept}

    def _read_file(self) -> None:
        if self._cfg.init_weights != "newest":
            raise ConfigError(
                f"policy.init_weights={self._cfg.init_weights} needs a run folder, but {self._path} is a file."
            )
        content = _load(self._path)
        # A file that `write` wrote contains the parts.
        is_ours = isinstance(content.get("policy"), Mapping)
        self._states = dict(content) if is_ours else {"policy": content}

    def _unflattened(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns published weights by name, if they are those of a policy with the same layers."""
        weights = FlatWeights(self._module)
        if weights.nbytes != flat.numel():
            raise ConfigError(
                f"the checkpoint in {self._path} contains {flat.numel()} bytes of weights, but the policy needs "
                f"{weights.nbytes}. Let the run end, so that it writes policy.pt, or use a policy with the same layers."
            )
        weights.read(flat)
        return {name: tensor.clone() for name, tensor in self._module.state_dict().items()}

    def _fitting(self, part: str, ours: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a state dict: the tensors of `part` that fit, and `ours` for the others. With `policy.init_strict`,
        all must fit."""
        theirs = self._states[part]
        shapes = [{name: _shape(value) for name, value in each.items()} for each in (theirs, ours)]
        fits = [name for name in ours if name in theirs and shapes[1][name] in (None, shapes[0][name])]
        problems = [f"{part}.{name} {_form(name, shapes)}" for name in {**ours, **theirs} if name not in fits]
        if problems and (self._cfg.init_strict or not fits):
            more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
            count = counted(len(fits), "tensor")
            advice = f"Use a policy with the same layers, or policy.init_strict=false to load only what fits ({count})."
            if not fits:
                advice = "No tensor fits: use a policy with the same layers."
            raise ConfigError(
                f"policy.init_from={self._cfg.init_from} does not fit: {'; '.join(problems[:_NAMED])}{more}. {advice}"
            )
        self._left_out += problems
        return {**ours, **{name: theirs[name] for name in fits}}


def _checkpoint(checkpoint: Checkpoint) -> tuple[dict[str, Any], dict[str, Any]]:
    return checkpoint.manifest, checkpoint.load()


def _load(path: Path) -> Any:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise DamagedFileError(
            f"{path} cannot be loaded as weights: {summary_of(error)}. Name a file of a state_dict."
        ) from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} contains a value of type {type(content).__name__}. Name a file of a state_dict.")
    return content


def _shape(value: Any) -> Any:
    # A lazy layer takes its shape from the weights.
    return [*value.shape] if isinstance(value, torch.Tensor) and not is_lazy(value) else None


def _form(name: str, shapes: list[dict[str, Any]]) -> str:
    theirs, ours = (each.get(name) for each in shapes)
    if name not in shapes[0]:
        return "is missing there"
    return "does not exist here" if name not in shapes[1] else f"has shape {theirs} there, {ours} here"
