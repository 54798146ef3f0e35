"""Rules between keywords of the Python classes, each by itself: what it refuses, and what is just allowed."""

from types import SimpleNamespace

import pytest

from collectx.batch import Leaf
from collectx.errors import SpaceError
from collectx.library import rules
from collectx.replay import ReplayBuffer

BUFFER = ReplayBuffer(8)
ADDING = SimpleNamespace(extend=None, add=None)
EXTENDING = SimpleNamespace(extend=None)
# The keywords that the rules read, as a collector with two sync workers has them.
KEYWORDS = {
    **dict.fromkeys(("cat_results", "replay_buffer", "trajs_per_batch", "trajs_per_write", "traj_format", "post_traj")),
    **dict.fromkeys(("policy", "policy_factory", "postproc", "weight_updater", "interruptor", "frames_per_worker")),
    **dict.fromkeys(("pre_collect_hook", "post_collect_hook", "init_fn", "weight_sync_schemes", "weight_recv_schemes")),
    **dict.fromkeys(("split_trajs", "return_same_td", "has_individual_policies", "is_concatenated"), False),
    **dict.fromkeys(("track_traj_ids", "extend_buffer", "has_workers", "track_policy_version"), True),
    **dict.fromkeys(("update_interval", "max_weight_update_interval", "exploration_mode")),
    **{"update_at_each_batch": False, "update_after_each_batch": False, "exploration_type": "RANDOM"},
    **dict.fromkeys(("create_env_kwargs", "device", "storing_device", "policy_device", "env_device", "create_env_fn")),
}
COLLECTOR = {"num_workers": 2, "schedule": "sync", "overlap": 0, "preemptive_threshold": None}


@pytest.mark.parametrize(
    ("rule", "keywords", "collector", "expected"),
    [
        (rules._batches, {}, {}, []),
        *((rules._batches, {"cat_results": value}, {}, []) for value in ("stack", 0, -1)),
        (rules._batches, {"cat_results": "cat"}, {}, ["cat_results='cat' ... 'stack'"]),
        (rules._batches, {"split_trajs": True}, {}, []),
        (
            rules._batches,
            {"split_trajs": True, "track_traj_ids": False},
            {},
            ["split_trajs=True ... track_traj_ids=True"],
        ),
        (rules._batches, {"replay_buffer": BUFFER}, {}, []),
        (rules._batches, {"replay_buffer": BUFFER, "split_trajs": True}, {}, ["split_trajs=True ... replay buffer"]),
        (rules._batches, {"replay_buffer": EXTENDING, "split_trajs": True}, {}, []),
        (
            rules._batches,
            {"replay_buffer": ADDING, "split_trajs": True, "extend_buffer": False},
            {},
            ["split_trajs=True ... replay buffer"],
        ),
        (
            rules._batches,
            {"replay_buffer": 3},
            {},
            ["replay_buffer must be a ReplayBuffer, ... method extend(), but is of type int."],
        ),
        (rules._batches, {"replay_buffer": ADDING, "extend_buffer": False}, {}, []),
        (
            rules._batches,
            {"replay_buffer": EXTENDING, "extend_buffer": False},
            {},
            ["extend_buffer=False ... the method add()"],
        ),
        (rules._frames_per_worker, {"frames_per_worker": [4, 6], "is_concatenated": True}, {}, []),
        (rules._frames_per_worker, {"frames_per_worker": [4, 6]}, {}, ["frames_per_batch=[4, 6] ... cat_results=-1"]),
        (rules._frames_per_worker, {"frames_per_worker": [4, 6]}, {"schedule": "async"}, []),
        (
            rules._frames_per_worker,
            {"frames_per_worker": [4], "is_concatenated": True},
            {},
            ["frames_per_batch=[4] ... 2 workers"],
        ),
        (
            rules._frames_per_worker,
            {"frames_per_worker": [4], "has_workers": False},
            {},
            ["frames_per_batch=[4] ... must be a single number"],
        ),
        (rules._overlap, {"has_individual_policies": True}, {"overlap": 1}, ["overlap=1 ... policy_factory"]),
        (rules._overlap, {"has_individual_policies": True}, {"overlap": 0}, []),
        (rules._overlap, {}, {"overlap": 1}, []),
        (rules._early_ends, {"interruptor": 3}, {}, ["interruptor=3 ... collection_stopped"]),
        (rules._early_ends, {"interruptor": SimpleNamespace(collection_stopped=print)}, {}, []),
        (
            rules._early_ends,
            {"interruptor": SimpleNamespace(collection_stopped=print), "return_same_td": True},
            {},
            ["return_same_td=True ... interruptor"],
        ),
        (rules._early_ends, {"return_same_td": True}, {"preemptive_threshold": 0.5}, []),
        (
            rules._early_ends,
            {"return_same_td": True, "is_concatenated": True},
            {"preemptive_threshold": 0.5},
            ["return_same_td=True ... preemptive_threshold=0.5"],
        ),
        (rules._trajectories, {}, {}, []),
        (rules._trajectories, {"trajs_per_write": 0}, {}, ["trajs_per_write=0 ... trajs_per_batch"]),
        (rules._trajectories, {"trajs_per_batch": 2, "trajs_per_write": 1}, {}, []),
        (
            rules._trajectories,
            {
                "trajs_per_batch": 2,
                "return_same_td": True,
                "track_traj_ids": False,
                "split_trajs": True,
                "extend_buffer": False,
            },
            {},
            [
                "return_same_td=True ... trajs_per_batch=2",
                "track_traj_ids=False ... trajs_per_batch=2",
                "split_trajs=True ... trajs_per_batch=2",
                "extend_buffer=False ... trajs_per_batch=2",
            ],
        ),
        (rules._models, {"weight_sync_schemes": {"policy": 1, "env.x": 2, "replay_buffer.y": 3}}, {}, []),
        (
            rules._models,
            {"weight_recv_schemes": {"env": 1, "critic": 2}},
            {},
            ["weight_recv_schemes ... unknown models 'critic' and 'env'"],
        ),
        (rules._callables, {"policy_factory": [print, None]}, {}, []),
        (
            rules._callables,
            {"policy_factory": [print, 3], "init_fn": 4},
            {},
            ["policy_factory=3 ... called", "init_fn=4 ... called"],
        ),
        (rules._callables, {"policy": 3}, {}, ["policy=3 ... module"]),
        (rules._envs, {"create_env_fn": [print] * 2, "create_env_kwargs": [{}, None]}, {}, []),
        (rules._envs, {"create_env_fn": print, "create_env_kwargs": {}}, {}, []),
        (rules._envs, {"create_env_fn": [print]}, {}, ["num_workers=2, ... create_env_fn has 1 "]),
        (rules._envs, {"create_env_fn": []}, {}, ["create_env_fn is empty"]),
        (rules._envs, {"create_env_fn": [print, 3]}, {}, ["create_env_fn[1]=3 ... env"]),
        (
            rules._envs,
            {"create_env_fn": print, "create_env_kwargs": [3, {}]},
            {},
            ["create_env_kwargs=3 ... dict"],
        ),
        (rules._twice, {"update_after_each_batch": True, "update_interval": 1}, {}, []),
        (rules._twice, {"update_interval": 3, "max_weight_update_interval": 3}, {}, []),
        (rules._twice, {"update_at_each_batch": True, "update_interval": -1}, {}, []),
        (
            rules._twice,
            {"update_at_each_batch": True, "update_interval": 5},
            {},
            ["update_interval=5 and update_at_each_batch=True contradict"],
        ),
        (
            rules._twice,
            {"update_interval": 3, "max_weight_update_interval": 5},
            {},
            ["max_weight_update_interval=5 and update_interval=3 contradict"],
        ),
        (rules._twice, {"exploration_type": "RANDOM", "exploration_mode": "mode"}, {}, []),
        (rules._twice, {"exploration_type": "MODE", "exploration_mode": "mode"}, {}, []),
        (
            rules._twice,
            {"exploration_type": "MODE", "exploration_mode": "random"},
            {},
            ["exploration_type='MODE' and exploration_mode='random' contradict"],
        ),
        (rules._lists, {"policy_device": ["cpu", "cpu"], "device": "cpu"}, {}, []),
        (rules._lists, {"policy_device": ["cpu"]}, {}, ["policy_device ... 2 workers"]),
    ],
)
def test_what_a_rule_refuses(rule, keywords, collector, expected):
    cfg = SimpleNamespace(collector=SimpleNamespace(**COLLECTOR | collector))
    messages = list(rule(SimpleNamespace(**KEYWORDS | keywords), cfg))
    assert len(messages) == len(expected), messages
    for message, told in zip(messages, expected, strict=True):
        start, _, word = told.partition("... ")
        assert message.startswith(start)
        assert word in message.removeprefix(start)


@pytest.mark.parametrize(
    ("key", "tracks", "is_refused"),
    [
        (("policy_version",), True, True),
        (("next", "policy_version"), True, True),
        (("policy_version", "a"), True, True),
        (("policy_version",), False, False),
        (("a", "policy_version"), True, False),
    ],
)
def test_a_key_that_is_added_to_batches_is_not_written_by_others(key, tracks, is_refused):
    keywords, leaves = SimpleNamespace(track_policy_version=tracks), [Leaf(key, (), None)]
    if is_refused:
        with pytest.raises(SpaceError, match="writes the key policy_version"):
            rules.check_keys(keywords, leaves)
    else:
        rules.check_keys(keywords, leaves)
