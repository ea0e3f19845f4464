"""Shared parts of the agents of d4pg.py, mpo.py and v_mpo.py: networks, replay, training loop.

An agent plays an episode, stores it, and learns from batches of stored transitions. Each process
acts by itself, with its own seed and replay; the learner's batches are divided among the replicas.
"""

import abc
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import matplotlib
import numpy as np
import tensorflow as tf
import tyro

from onepass.foundation.progress import Progress
from onepass.foundation.rules import UserError, in_one_line
from onepass.foundation.run_directory import Checkpoints
from onepass.replicator import Replicator, strategies
from onepass.replicator.training.config import OptimizerConfig
from onepass.replicator.training.state import adam

SOLVED = -200.0  # mean return of Pendulum-v1 without noise, from 20 fixed starts
KEYS = ("observation", "action", "reward", "discount", "after")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of an agent's run."""

    out: Path
    """Folder for the learning curve (PNG, CSV) and the weights."""
    task: str = "Pendulum-v1"
    """Gymnasium task with a box of actions."""
    episodes: int = 100
    """Episodes to learn from."""
    episodes_per_round: int = 1
    """Episodes between two phases of learning."""
    remembered: int = 100_000
    """Number of newest transitions to learn from."""
    updates: int = 200
    """Updates per phase of learning."""
    updates_per_call: int = 20
    """Updates per call of TensorFlow."""
    target_updates: int = 100
    """Updates between copies to the target networks."""
    batch: int = 128
    """Transitions in the global batch."""
    hidden: int = 128
    """Width of both hidden layers of actor and critic."""
    learning_rate: float = 1e-3
    """Learning rate of Adam for both."""
    discount: float = 0.99
    """Discount of rewards per step."""
    returns: int = 5
    """Rewards that are summed before the critic's estimate is added."""
    reward_scale: float = 0.1
    """Factor on rewards for the critic."""
    seed: int = 0
    """Seed of weights, noise, replay and task."""
    strategy: str = "auto"
    """Strategy: auto, single, local:2, multi_worker, parameter_server, sharded:2x2."""


def perceptron(weights, x, arrays: Any = tf):
    """Return the linear last layer of a network of `[kernel, bias, kernel, bias, ...]`.

    `x` is float [..., inputs]; `arrays` is tf or np, whose functions are used.
    """
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = arrays.maximum(x @ kernel + bias, 0.0)
    return x @ weights[-2] + weights[-1]


def layers(rng, widths):
    """Return float32 kernels, uniform within 1/sqrt(inputs), and biases of a perceptron."""
    arrays = []
    for inputs, outputs in itertools.pairwise(widths):
        limit = inputs**-0.5
        arrays += [rng.uniform(-limit, limit, [inputs, outputs]), np.zeros(outputs)]
    return [array.astype(np.float32) for array in arrays]


class Learner(tf.Module, abc.ABC):
    """Actor, critic, their targets and Adam's moments. Actions are scaled to [-1, 1].

    `outputs` are the numbers of outputs of the actor and of the critic.

    Attributes:
      draws: number of standard normal actions in each transition of a batch.
    """

    draws = 0

    def __init__(
        self,
        settings: Settings,
        observations: int,
        outputs: tuple[int, int],
        critic_inputs: int,
        replicator: Replicator,
    ):
        super().__init__()
        self.settings, self.replicator = settings, replicator
        rng, hidden = np.random.default_rng(settings.seed), [settings.hidden] * 2
        actor = layers(rng, [observations, *hidden, outputs[0]])
        critic = layers(rng, [critic_inputs, *hidden, outputs[1]])
        self.actor, self.target_actor = ([tf.Variable(a) for a in actor] for _ in range(2))
        self.critic, self.target_critic = ([tf.Variable(a) for a in critic] for _ in range(2))
        zeros = [np.zeros_like(array) for array in actor + critic]
        self.first, self.second = ([tf.Variable(z) for z in zeros] for _ in range(2))
        self.step = tf.Variable(0)
        self.adam = OptimizerConfig(learning_rate=settings.learning_rate)

    @abc.abstractmethod
    def act(self, weights: Sequence[np.ndarray], observation, rng):
        """Return an action of the actor with these weights, without noise if `rng` is None."""

    @abc.abstractmethod
    def loss(self, batch):
        """Return the sum of the independent losses of actor and critic, and metrics."""

    def accepted(self, batch, moved):
        """Return the actor's new weights, and pairs of other variables and new values."""
        return moved, []

    def learn(self, batch):
        """Update everything once; this is the step that the Replicator runs."""
        live, targets = self.actor + self.critic, self.target_actor + self.target_critic
        with tf.GradientTape() as tape:
            loss, metrics = self.loss(batch)
        gradients = self.replicator.all_reduce(tape.gradient(loss, live), "mean")
        moved, first, second = adam(
            self.adam, self.adam.learning_rate, self.step, live, gradients, self.first, self.second
        )
        actor, others = self.accepted(batch, moved[: len(self.actor)])
        moved = [*actor, *moved[len(self.actor) :]]
        copy = tf.cast(tf.equal((self.step + 1) % self.settings.target_updates, 0), tf.float32)
        copied = [copy * m + (1.0 - copy) * t for m, t in zip(moved, targets, strict=True)]
        self.replicator.update(
            [*live, *targets, *self.first, *self.second, self.step, *(v for v, _ in others)],
            [*moved, *copied, *first, *second, self.step + 1, *(value for _, value in others)],
        )
        return metrics


def n_step(rewards, discount: float, steps: int):
    """Return sums of `discount^i r_(t+i)` over the next `steps` rewards, and their counts.

    Fewer are left near the end of an episode. Rewards are float [time], sums float64 [time], and
    the number of rewards in each int [time].
    """
    length = len(rewards)
    padded = np.concatenate([rewards, np.zeros(steps)])
    sums = sum(discount**i * padded[i : i + length] for i in range(steps))
    return sums, np.minimum(steps, length - np.arange(length))


class Replay:
    """A buffer of the last transitions, sampled uniformly."""

    def __init__(self, settings: Settings, rng):
        self.settings, self.rng = settings, rng
        self.rows: dict[str, np.ndarray] = {}

    def add(self, observations, actions, rewards, ended: bool):
        """Add an episode: observations [time + 1, ...], actions [time, ...] and rewards [time]."""
        given = self.settings
        sums, counts = n_step(rewards * given.reward_scale, given.discount, given.returns)
        last = np.arange(len(rewards)) + counts
        discounts = np.where((last == len(rewards)) & ended, 0.0, given.discount**counts)
        pieces = observations[:-1], actions, sums[:, None], discounts[:, None], observations[last]
        for key, new in zip(KEYS, pieces, strict=True):
            rows = np.concatenate([self.rows.get(key, new[:0]), new])
            self.rows[key] = rows[-given.remembered :].astype(np.float32)

    def dataset(self, batches: int, draws: int = 0):
        """Return a tf.data.Dataset of `batches` global batches.

        Each transition has `draws` standard normal actions: "draws" [batch, draws, actions].
        """
        shape = [batches, self.settings.batch]
        chosen = self.rng.integers(len(self.rows["reward"]), size=shape)
        drawn = {key: rows[chosen] for key, rows in self.rows.items()}
        if draws:
            size = (*shape, draws, drawn["action"].shape[-1])
            drawn["draws"] = self.rng.standard_normal(size, np.float32)
        return tf.data.Dataset.from_tensor_slices(drawn)


def play(task, policy, seed: int):
    """Play an episode; return observations, actions, rewards, and whether it ended by itself."""
    observations, actions, rewards, over = [task.reset(seed=seed)[0]], [], [], False
    while not over:
        actions.append(policy(observations[-1]))
        observation, reward, ended, cut, _ = task.step(np.clip(actions[-1], -1.0, 1.0))
        observations.append(observation)
        rewards.append(reward)
        over = ended or cut
    return np.stack(observations), np.stack(actions), np.array(rewards), ended


def acting(learner: Learner, rng=None):
    """Return the current actor, in NumPy, as a policy: observation -> action."""
    weights = [weight.numpy() for weight in learner.actor]
    return lambda observation: learner.act(weights, observation, rng).astype(np.float32)


def score(task, policy, episodes: int = 20):
    """Return the returns of episodes from fixed starts, float64 [episodes]."""
    return np.array([play(task, policy, seed=10**6 + i)[2].sum() for i in range(episodes)])


def draw(path: Path, name: str, curve, by_chance):
    """Write the learning curve and the return of the random policy as a PNG."""
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(*np.transpose(curve), label=f"{name}, with exploration noise")
    axes.axhline(np.mean(by_chance), color="grey", linestyle="--", label="random policy")
    axes.set(xlabel="environment steps", ylabel="return of an episode")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def train(name: str, settings: Settings, make: Callable[..., Learner]) -> None:
    """Alternate between acting and learning, and write curve and weights to `settings.out`.

    `make` returns a learner, from settings, sizes of observation and action, and a Replicator.
    """
    replicator = strategies.from_environment(settings.strategy)
    for many, one in (("updates", "updates_per_call"), ("episodes", "episodes_per_round")):
        if getattr(settings, many) % getattr(settings, one):
            raise UserError(f"`{many}` must be a multiple of `{one}`.")
    task = gymnasium.make(settings.task)
    task = gymnasium.wrappers.RescaleAction(task, np.float32(-1.0), np.float32(1.0))
    rng = np.random.default_rng([settings.seed, replicator.worker_index])
    (observations,), (actions,) = task.observation_space.shape, task.action_space.shape
    by_chance = score(task, lambda _: rng.uniform(-1.0, 1.0, actions).astype(np.float32))
    with replicator.scope():
        learner = make(settings, observations, actions, replicator)
    learn = replicator.compile(learner.learn, settings.updates_per_call)
    replay, curve, steps = Replay(settings, rng), [], 0
    with Progress(settings.episodes, name.lower(), "episode") as progress:
        for episode in range(1, settings.episodes + 1):
            played = play(task, acting(learner, rng), int(rng.integers(2**31)))
            replay.add(*played)
            steps += len(played[2])
            curve.append((steps, played[2].sum()))
            figures = {"episode_return": curve[-1][1]}
            if episode % settings.episodes_per_round == 0:
                drawn = replay.dataset(settings.updates, learner.draws)
                batches = iter(replicator.batches(drawn))
                for _ in range(settings.updates // settings.updates_per_call):
                    learned = learn(batches)
                figures |= {key: float(value) for key, value in learned.items()}
            progress.advance(**figures)
    if replicator.is_chief:
        report(name, settings, learner, curve, by_chance, score(task, acting(learner)))


def report(name: str, settings: Settings, learner: Learner, curve, by_chance, learned) -> None:
    """Write curve and weights, and print the returns before and after learning."""
    weights = {str(i): v.numpy() for i, v in enumerate(learner.variables)}
    Checkpoints(settings.out / "checkpoints").save(int(learner.step.numpy()), weights)
    draw(settings.out / "curve.png", name, curve, by_chance)
    np.savetxt(settings.out / "curve.csv", curve, "%.6g", ",", header="steps,return", comments="")
    for who, found in (("random policy", by_chance), (f"{name} without noise", learned)):
        print(f"{who}: return {found.mean():.1f} +- {found.std():.1f} over {len(found)} episodes")


def run(name: str, kind: type[Settings], make: Callable[..., Learner], about, arguments=None):
    """Read the command line and train."""
    settings = tyro.cli(kind, args=arguments, description=about)
    with in_one_line(name.lower()):
        train(name, settings, make)
