"""TorchRL's envs for the tests, by name. Its functions are at the top of a module, so that processes find them."""

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torchrl import envs
from torchrl.data import Binary, Bounded, Categorical, Composite, NonTensor, OneHot, Unbounded

from user_code import walk


# The numbers of these are the same on every machine. By functions, so that a process imports `walk` for its id.
def one_hot(**kwargs):
    return envs.GymEnv(walk.ID, max_episode_steps=6, **kwargs)


def walking():
    return one_hot(categorical_action_encoding=True)


def pushing():
    return envs.GymEnv(walk.CONTINUOUS, max_episode_steps=6)


def transformed(env, *transforms):
    return envs.TransformedEnv(env, envs.Compose(*transforms))


class Sampled(gymnasium.Env):
    """Observes samples of a space, in episodes of 5 steps; rewards are -0.0, -0.1, ..."""

    def __init__(self, space, action_space):
        self.observation_space, self.action_space = space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._step_number = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        reward = np.float64(-0.1) * self._step_number
        self._step_number += 1
        return self.observation_space.sample(), reward, self._step_number == 5, False, {}


def sampled(space, **kwargs):
    return envs.GymWrapper(Sampled(space, spaces.Discrete(2)), **kwargs)


def discrete():
    return sampled(spaces.Discrete(4))


def nested_dict(**kwargs):
    part = spaces.Dict(number=spaces.Discrete(3), double=spaces.Box(-1, 1, (2,), np.float64))
    space = spaces.Dict(part=part, flags=spaces.MultiBinary(3), pixel=spaces.Box(0, 255, (), np.uint8))
    return sampled(space, **kwargs)


def counted():
    return transformed(walking(), envs.StepCounter(5), envs.RewardSum(), envs.InitTracker())


def primed(value=1.0):
    return envs.TransformedEnv(walking(), envs.TensorDictPrimer(hidden=Unbounded((3,)), default_value=value))


def recurrent():
    state = {name: Unbounded((1, 5)) for name in ("h", "c")}
    return transformed(walking(), envs.InitTracker(), envs.TensorDictPrimer(state, default_value=0.0))


def serial(num_envs=3, one=walking):
    return envs.SerialEnv(num_envs, one)


def parallel(**kwargs):
    return envs.ParallelEnv(2, walking, **kwargs)


def counted_serial(one=walking):
    return transformed(serial(one=one), envs.StepCounter(5), envs.RewardSum())


class Goals(gymnasium.Env):
    """Observes a Dict with a nested Dict and a Tuple, in episodes of 5 steps; the goal is that of the episode."""

    box = spaces.Box(-9, 9, (2,), np.float32)
    parts = spaces.Dict(flags=spaces.MultiBinary(3), both=spaces.Tuple([box, box]))
    observation_space = spaces.Dict(observation=box, achieved_goal=box, desired_goal=box, more=parts)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._goal = self.np_random.integers(-8, 9, 2).astype(np.float32)
        self._at, self._steps = np.zeros(2, np.float32), 0
        return self._observe(), {}

    def step(self, action):
        self._steps += 1
        self._at = self._at + np.float32(2 * action - 1)
        return self._observe(), -float(abs(self._at - self._goal).sum()), False, self._steps == 5, {}

    def _observe(self):
        flags = (np.arange(3) < self._steps).astype(np.int8)
        more = {"flags": flags, "both": (self._at / 2, -self._at)}
        return {"observation": self._at / 4, "achieved_goal": self._at, "desired_goal": self._goal, "more": more}


def goals():
    return envs.GymWrapper(Goals(), categorical_action_encoding=True)


class Toy(envs.EnvBase):
    """Observes what the number of the step says, by `_values`; an episode has `length` steps."""

    length = 7

    def __init__(self):
        super().__init__()
        self.reward_spec = Unbounded((1,))
        self._step_number = 0

    def _reset(self, tensordict, **kwargs):
        self._step_number = 0
        return TensorDict(self._values(), [])

    def _step(self, tensordict):
        self._step_number += 1
        ended = torch.tensor([self._step_number == self.length])
        return TensorDict({**self._values(), "reward": torch.zeros(1), "done": ended}, [])

    def _set_seed(self, seed):
        pass


class ManyKeys(Toy):
    """Dtypes, nested keys and a second action; `only_root` is a state that the env never writes again."""

    length = 6

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(
            pixels=Bounded(0, 255, (2, 2, 3), dtype=torch.uint8),
            flags=Binary(4, dtype=torch.bool),
            deep=Composite(double=Unbounded((2,), dtype=torch.float64), single=Unbounded(())),
        )
        self.state_spec = Composite(only_root=Unbounded((2,)))
        self.action_spec = Composite(agent=Composite(move=OneHot(3), push=Bounded(-1.0, 1.0, (2,))))

    def _values(self):
        n = self._step_number
        return {
            "pixels": torch.full((2, 2, 3), n, dtype=torch.uint8),
            "flags": torch.arange(4) < n % 5,
            "deep": {"double": torch.full((2,), n / 3, dtype=torch.float64), "single": torch.tensor(n / 7)},
        }

    def _reset(self, tensordict, **kwargs):
        return super()._reset(tensordict).set("only_root", torch.tensor([3.0, 4.0]))

    def _step(self, tensordict):
        assert tensordict["only_root"].tolist() == [3.0, 4.0]
        action = tensordict["agent"]
        reward = action["move"].float().argmax() + action["push"].sum()
        return super()._step(tensordict).set("reward", reward[None])


class Masked(Toy):
    """Only the action of the step's number modulo 4 is legal."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(action_mask=Binary(4, dtype=torch.bool))
        self.action_spec = Categorical(4)

    def _values(self):
        return {"action_mask": torch.arange(4) == self._step_number % 4}


def masked():
    return envs.TransformedEnv(Masked(), envs.ActionMask())


class Players(Toy):
    """A group of two agents with masks, as PettingZooWrapper makes them. It raises an error at an illegal action."""

    def __init__(self, one_hot=False):
        super().__init__()
        self.observation_spec = self._of_players(
            observation=Unbounded((2, 3)), action_mask=Binary(4, (2, 4), dtype=torch.bool)
        )
        self.action_spec = self._of_players(action=OneHot(4, (2, 4)) if one_hot else Categorical(4, (2,)))
        self._is_one_hot = one_hot

    def _of_players(self, **specs):
        return Composite(players=Composite(**specs, shape=(2,)))

    def _values(self):
        self._mask = (torch.rand(2, 4) < 0.3).scatter(1, torch.randint(4, (2, 1)), True)
        return {"players": TensorDict({"observation": torch.rand(2, 3), "action_mask": self._mask.clone()}, [2])}

    def _step(self, tensordict):
        action = tensordict["players", "action"]
        chosen = action.bool() if self._is_one_hot else torch.nn.functional.one_hot(action, 4).bool()
        assert (chosen & self._mask).any(1).all(), "illegal"
        return super()._step(tensordict)


class OneHotMasked(Masked):
    """With one-hot actions, and a mask of two rows."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(action_mask=Binary(2, (2, 2), dtype=torch.bool))
        self.action_spec = OneHot(4)

    def _values(self):
        return {"action_mask": super()._values()["action_mask"].reshape(2, 2)}

    def _step(self, tensordict):
        assert tensordict["action"].int().argmax() == self._step_number % 4, "illegal"
        return super()._step(tensordict)


class Spoken(Toy):
    """Its reset observes a text, which its steps want to see."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)), mission=NonTensor(()))
        self.action_spec = Categorical(4)

    def _values(self):
        return {"observation": torch.full((1,), float(self._step_number))}

    def _reset(self, tensordict, **kwargs):
        return super()._reset(tensordict).set("mission", "go")

    def _step(self, tensordict):
        assert tensordict["mission"] == "go"
        return super()._step(tensordict)


class Growing(Toy):
    """Observes one row more in each step."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(rows=Unbounded((-1, 2)), number=Unbounded((1,)))
        self.action_spec = Categorical(4)

    def _values(self):
        return {"rows": torch.zeros(self._step_number + 1, 2), "number": torch.full((1,), float(self._step_number))}


class Unequal(Toy):
    """Two agents, which observe 2 and 3 numbers."""

    def __init__(self):
        super().__init__()
        agents = torch.stack([Composite(rows=Unbounded((size,))) for size in (2, 3)])
        self.observation_spec = Composite(agents=agents, number=Unbounded((1,)))
        self.action_spec = Categorical(4)

    def _values(self):
        agents = TensorDict.lazy_stack([TensorDict(rows=torch.zeros(size)) for size in (2, 3)])
        return {"agents": agents, "number": torch.full((1,), float(self._step_number))}


class TwoRewards(ManyKeys):
    """Two rewards, in double precision."""

    def __init__(self):
        super().__init__()
        self.reward_spec = Unbounded((2,), dtype=torch.float64)

    def _step(self, tensordict):
        after = super()._step(tensordict)
        return after.set("reward", torch.cat([after["reward"], -after["reward"] / 3]).double())


class Agents(envs.EnvBase):
    """Two agents, of which one ends after 3 steps, the other after 5 (one more in each env of a batch), and the env
    with the later. Their nested TensorDict has the batch size of the env, or `group` more dimensions."""

    def __init__(self, size=(), group=()):
        super().__init__(batch_size=torch.Size(size))
        self._group = (*size, *group)
        self.observation_spec = self._of_agents(observation=Unbounded((*size, 2, 3)))
        self.action_spec = self._of_agents(action=Bounded(-1.0, 1.0, (*size, 2, 1)))
        self.reward_spec = self._of_agents(reward=Unbounded((*size, 2, 1)))
        ends = {name: Binary(1, (*size, 2, 1), dtype=torch.bool) for name in ("done", "terminated")}
        own = {name: Binary(1, (*size, 1), dtype=torch.bool) for name in ends}
        self.done_spec = Composite(**own, agents=Composite(**ends, shape=self._group), shape=size)
        self._lengths = torch.arange(self.batch_size.numel()).reshape(size)
        self._count = torch.zeros(size)

    def _of_agents(self, **specs):
        return Composite(agents=Composite(**specs, shape=self._group), shape=self.batch_size)

    def _observation(self):
        return self._count[..., None, None] * torch.tensor([[0.1], [0.01]]).expand(2, 3)

    def _reset(self, tensordict, **kwargs):
        every = torch.ones(self.batch_size, dtype=torch.bool)
        begins = every if tensordict is None else tensordict.get("_reset", every).reshape(self.batch_size)
        self._count = torch.where(begins, 0.0, self._count)
        agents = TensorDict({"observation": self._observation()}, self._group)
        return TensorDict({"agents": agents}, self.batch_size)

    def _step(self, tensordict):
        self._count = self._count + 1
        ends = torch.stack([self._count >= self._lengths + 3, self._count >= self._lengths + 5], -1)[..., None]
        reward = tensordict["agents", "action"] + self._count[..., None, None]
        agents = {"observation": self._observation(), "reward": reward, "done": ends, "terminated": ends}
        over = ends.all(-2)
        agents = TensorDict(agents, self._group)
        return TensorDict({"agents": agents, "done": over, "terminated": over}, self.batch_size)

    def _set_seed(self, seed):
        pass


class Apart(Agents):
    """Without an end of its own: each agent is reset alone."""

    def __init__(self, size=()):
        super().__init__(size)
        self.done_spec = self._of_agents(done=Binary(1, (*size, 2, 1), dtype=torch.bool))
        self._count = torch.zeros(*size, 2, 1)

    def _observation(self):
        return self._count * torch.tensor([[0.1], [0.01]]).expand(2, 3)

    def _reset(self, tensordict, **kwargs):
        every = torch.ones_like(self._count, dtype=torch.bool)
        begins = every if tensordict is None else tensordict.get(("agents", "_reset"), every)
        self._count = torch.where(begins, 0.0, self._count)
        return TensorDict({"agents": {"observation": self._observation()}}, self.batch_size)

    def _step(self, tensordict):
        self._count = self._count + 1
        reward = tensordict["agents", "action"] + self._count
        ends = self._count >= self._lengths[..., None, None] + torch.tensor([[3], [5]])
        return TensorDict(
            {"agents": {"observation": self._observation(), "reward": reward, "done": ends}}, self.batch_size
        )


def apart_with_sums():
    return envs.TransformedEnv(Apart(), envs.RewardSum())


class ResetsItself(envs.EnvBase):
    """Three envs that observe the number of the step, and reset themselves within it, as simulators on a GPU do: env e
    after `3 + e` steps.

    Args:
        native: TorchRL knows of it, and marks the final observations as invalid.
    """

    def __init__(self, native=True):
        super().__init__(batch_size=[3])
        self._torchrl_native_autoreset = native
        count = Unbounded((3, 1), dtype=torch.int64)
        self.observation_spec = Composite(observation=Unbounded((3, 2)), count=count, shape=[3])
        self.action_spec = Categorical(2, shape=(3,))
        self.reward_spec = Unbounded((3, 1))
        self.count = torch.zeros(3, 1, dtype=torch.int64)

    def _reset(self, tensordict, **kwargs):
        self.count = torch.zeros(3, 1, dtype=torch.int64)
        return self._observation()

    def _step(self, tensordict):
        count = self.count + 1
        ends = count >= torch.tensor([[3], [4], [5]])
        self.count = count * ~ends
        return self._observation().update({"reward": count.float(), "done": ends, "terminated": ends.clone()})

    def _observation(self):
        return TensorDict({"observation": self.count.float().expand(3, 2).clone(), "count": self.count.clone()}, [3])

    def _set_seed(self, seed):
        pass


class ResetsBehind(ResetsItself):
    """Has a method of its own, which keeps the final observations."""

    def __init__(self):
        super().__init__(native=False)

    def step_and_maybe_reset(self, tensordict):
        self.count, before = self.count + 1, self.count
        final, self.count = self._observation(), before
        after = self.step(tensordict)
        following = self._observation()
        after["next"].update(final)
        return after, following


def counted_itself():
    return transformed(ResetsItself(), envs.RewardSum(), envs.StepCounter())


class Hooked(envs.Transform):
    def _post_step_mdp_hooks(self, tensordict, tensordict_):
        return tensordict.exclude(("next", "observation")), tensordict_


def hooked():
    return envs.TransformedEnv(walking(), Hooked())


def differences(**keywords):
    return envs.TransformedEnv(walking(), envs.transforms.NextObservationDelta(**keywords))
