import gymnasium
import numpy as np
import pytest
from env_stepping import Stepper

from collectx.config.schema.env import EnvPoolEnvConfig
from collectx.env import build

# One process of xdist imports it: that takes two seconds.
pytestmark = pytest.mark.xdist_group("envpool")


def cartpoles(num_envs, **kwargs) -> Stepper:
    return Stepper(
        build(EnvPoolEnvConfig(kind="envpool", num_envs=num_envs, id="CartPole-v1", kwargs=kwargs, num_threads=2))
    )


def test_resets_without_options_are_refused():
    with pytest.raises(NotImplementedError, match="because the resets of EnvPool's envs take none"):
        cartpoles(1).env.set_reset_options({"level": 1})


@pytest.mark.parametrize(("num_envs", "greedy"), [(1, False), (16, False), (16, True)])
def test_every_frame_obeys_the_physics_of_cartpole(num_envs, greedy):
    """There is no other stream to compare with, but a frame of the wrong env, or a reset, breaks the physics."""
    stepper = cartpoles(num_envs).reset()
    rng = np.random.default_rng(1)
    for _ in range(120):
        # Pushing always to the same side ends all episodes within a step or two: more than there are spares.
        out = stepper.step(np.zeros(num_envs, np.int64) if greedy else rng.integers(0, 2, num_envs))
        assert (abs(stepper.observation[0][out.terminated]) <= 0.05).all()
    stepper.env.close()
    physics = gymnasium.make("CartPole-v1").unwrapped
    physics.reset(seed=0)
    frames = [frame for of_env in stepper.frames for frame in of_env]
    expected = []
    for frame in frames:
        physics.state = tuple(frame.before[0].astype(np.float64))
        after, reward, terminated, *_ = physics.step(int(frame.action[0]))
        physics.steps_beyond_terminated = None
        expected.append([*after, reward, terminated])
    found = [[*frame.after[0], frame.reward, frame.terminated] for frame in frames]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert sum(frame.ended for frame in frames) >= 3 * num_envs


def test_truncation_and_envs_cut_short():
    stepper = cartpoles(4, max_episode_steps=5).reset()
    lengths = np.zeros(4, int)
    for t in range(40):
        cut = np.arange(4) == t % 7
        out = stepper.step(np.full(4, t % 2), cut=cut)
        lengths += 1
        assert (out.truncated == (lengths == 5)).all()
        assert not out.terminated.any()
        lengths[out.truncated | cut] = 0


def test_every_env_has_its_own_seed():
    stepper = cartpoles(3)
    (one,), (two,) = (stepper.reset(seeds).observation for seeds in ([5, 6, 2**31 + 7], [9, 6, 7]))
    assert (one[1:] == two[1:]).all()
    assert (one[0] != two[0]).any()


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_the_first_episodes_are_those_of_the_seeds():
    import envpool

    stepper = cartpoles(2).reset([11, 12])
    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=2, seed=[11, 12])
    np.testing.assert_array_equal(stepper.observation[0], pool.reset()[0])
    stepper.env.close()


def test_the_observation_can_be_left_out():
    def collect(exclude_keys):
        cfg = EnvPoolEnvConfig(
            kind="envpool", num_envs=4, id="CartPole-v1", kwargs={}, num_threads=2, exclude_keys=exclude_keys
        )
        stepper = Stepper(build(cfg)).reset()
        # Always to the same side: episodes end, with spares and without.
        for _ in range(40):
            stepper.step(np.zeros(4, np.int64))
        stepper.env.close()
        return [[(frame.terminated, frame.truncated) for frame in of_env] for of_env in stepper.frames]

    assert collect(["observation"]) == collect([])


def test_a_task_with_a_dict_observation():
    """In this CartPole of `dm_control`, the pole begins upright, and each env has a seed of its own."""
    cfg = EnvPoolEnvConfig(kind="envpool", num_envs=3, id="CartpoleBalance-v1", kwargs={}, num_threads=2)
    stepper = Stepper(build(cfg)).reset()
    keys = [leaf.key for leaf in stepper.spec.observation]
    assert keys == [("position",), ("velocity",)]
    position = stepper.observation[0].copy()
    assert (position[:, 1] > 0.9).all()
    assert len(np.unique(position, axis=0)) == 3
    for _ in range(5):
        out = stepper.step(np.ones((3, 1)))
    assert (out.observation[0][:, 0] > position[:, 0]).all()
    assert (out.observation[1][:, 0] > 0).all()
    stepper.env.close()
