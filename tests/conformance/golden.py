"""Files of batches, and the comparison of batches."""

import enum
import json
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict

FOLDER = Path(__file__).parent / "golden"

OURS_ALONE = ("collector", "policy_version")
TRAJ_IDS = ("collector", "traj_ids")
MASK = ("collector", "mask")

# The classes, and their arguments, of the collectors whose attributes are compared.
LOCAL = ("Collector", "MultiSyncCollector", "MultiAsyncCollector")
OVER_TORCH = ("DistributedCollector", "DistributedSyncCollector", "RPCCollector")
INSTANCES = {name: {} for name in LOCAL} | {name: {"launcher": "mp"} for name in OVER_TORCH}
INSTANCES["RayCollector"] = {"ray_init_config": {"num_cpus": 2, "include_dashboard": False}}
SIZES = {"frames_per_batch": 40, "total_frames": 400}


def plain(value):
    """The text of a value that consists of plain data; None for any other."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, list | tuple):
        texts = [plain(each) for each in value]
        return None if None in texts else f"{type(value).__name__}: {', '.join(texts)}"
    if isinstance(value, dict):
        return "dict: empty" if not value else None
    return repr(value) if isinstance(value, bool | int | float | str | torch.device | None) else None


def keys(batch):
    return {key if isinstance(key, tuple) else (key,) for key in batch.keys(True, True)}


def save(path, batches):
    arrays = {}
    about = []
    for number, batch in enumerate(batches):
        device = None if batch.device is None else str(batch.device)
        about.append({"batch_size": list(batch.batch_size), "names": batch.names, "device": device})
        arrays |= {"/".join((str(number), *key)): batch[key].numpy() for key in sorted(keys(batch))}
    np.savez_compressed(path, about=json.dumps(about), **arrays)


def load(path):
    with np.load(path, allow_pickle=False) as file:
        values = [{} for _ in json.loads(str(file["about"]))]
        for name in file.files:
            number, *key = name.split("/")
            if key:
                values[int(number)][tuple(key)] = torch.from_numpy(file[name])
        return [TensorDict(batch, **about) for batch, about in zip(values, json.loads(str(file["about"])), strict=True)]


def in_order(batch):
    """The trajectories of a split batch, in order of their first observations."""
    return batch[batch["observation"][:, 0, 0].argsort(stable=True)]


def assert_alike(world, theirs, ours, names=True, ours_alone=frozenset({OURS_ALONE})):
    """The same keys, shapes, dtypes and, if `names`, dimension names of two batches. Returns the keys of both."""
    assert theirs.batch_size == ours.batch_size
    assert theirs.device == ours.device
    assert not names or theirs.names == ours.names
    surplus = {key for key in keys(ours) - keys(theirs) if key[-1] in world.surplus}
    assert keys(ours) - surplus == keys(theirs) | ours_alone
    for key in keys(theirs):
        assert (theirs[key].shape, theirs[key].dtype) == (ours[key].shape, ours[key].dtype), key
    return keys(theirs)


def assert_same(case, theirs, ours, ours_alone=frozenset({OURS_ALONE}), names=True):
    """The same batches, entry by entry; trajectory ids are the same but for their numbers."""
    if case.splits:
        # TorchRL does not name the time everywhere, and orders rows otherwise: see
        # docs/reference/torchrl-differences.md.
        assert {tuple(batch.names) for batch in theirs} <= {(None, None), (None, "time")}
        assert not ours_alone or {tuple(batch.names) for batch in ours} == {(None, "time")}
        theirs, ours = (list(map(in_order, batches)) for batches in (theirs, ours))
    assert len(theirs) == len(ours) > 0
    for number, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        shared = assert_alike(case.of, a, b, names and not case.splits, ours_alone) - {TRAJ_IDS}
        for key in shared if number >= case.random else ():
            torch.testing.assert_close(
                a[key], b[key], rtol=case.of.rtol, atol=case.of.rtol, msg=lambda text, key=key: f"{key}: {text}"
            )
    if case.of.ids and not case.random and TRAJ_IDS in keys(theirs[0]):
        # TorchRL gives ids a second time in later batches of two workers that it splits.
        step = 1 if case.splits and case.kind == "sync" else len(theirs)
        for i in range(0, len(theirs), step):
            ids = [torch.cat(list(map(_ids, batches[i : i + step]))) for batches in (theirs, ours)]
            assert torch.equal(*map(_renamed, ids))


def _ids(batch):
    """Returns the trajectory ids of the frames of a batch, without the padding of a split batch."""
    ids = batch[TRAJ_IDS].reshape(-1)
    return ids[batch[MASK].reshape(-1)] if MASK in keys(batch) else ids


def _renamed(ids):
    """Trajectory ids by their first appearance."""
    names = {}
    return torch.tensor([names.setdefault(i, len(names)) for i in ids.tolist()])
