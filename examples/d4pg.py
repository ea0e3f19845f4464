"""D4PG learns to swing up a pendulum: a distributional critic, n-step returns, replay.

    pip install onepass[examples]
    python -m examples.d4pg --out runs/d4pg
    python -m examples.d4pg --out runs/d4pg --strategy local:2

Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients", with the
categorical critic of Bellemare et al. 2017. What it should reach: a return of
about -190, where a random policy has -1160, in some minutes on two cores; two of three seeds did.
Each process acts for itself, with its own seed and replay; the learner's batches are shared by the
replicas.
"""

import dataclasses
import itertools
from pathlib import Path

import gymnasium
import matplotlib
import numpy as np
import tensorflow as tf
import tyro

from replicator import Replicator, strategies
from replicator.runs.checkpoints import Checkpoints
from replicator.runs.errors import UserError, in_one_line
from replicator.runs.progress import Progress
from replicator.training.config import OptimizerConfig
from replicator.training.optimizer import adam

ATOMS = 51
RETURNS = 5  # steps of reward before the critic is asked
DISCOUNT = 0.99  # a step
TARGET_UPDATES = 100  # between copies to the target networks
REMEMBERED = 100_000  # transitions
KEYS = ("observation", "action", "reward", "discount", "after")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Learns a control task of gymnasium by D4PG."""

    out: Path
    """Folder for the learning curve (PNG, CSV) and the weights."""
    task: str = "Pendulum-v1"
    """Gymnasium task with a box of actions."""
    episodes: int = 100
    """Episodes to learn from."""
    updates: int = 200
    """Updates of the learner after each episode."""
    updates_per_call: int = 20
    """Of these, how many one call of TensorFlow makes."""
    batch: int = 128
    """Transitions in the global batch."""
    hidden: int = 128
    """Width of both hidden layers of actor and critic."""
    learning_rate: float = 1e-3
    """Adam's, for both."""
    noise: float = 0.3
    """Standard deviation of the exploration noise; actions are within [-1, 1]."""
    reward_scale: float = 0.1
    """Multiplies rewards before the critic sees them."""
    lowest: float = -150.0
    """Lowest atom, in scaled return."""
    highest: float = 0.0
    """Highest atom, in scaled return."""
    seed: int = 0
    """Of weights, noise, replay and task."""
    strategy: str = "auto"
    """Where it learns: auto, single, local:2, multi_worker, parameter_server, sharded:2x2."""


def n_step(rewards, discount: float, steps: int):
    """Float64 [time] sums of `discount^i r_(t+i)` over the next `steps` rewards, and how many.

    Near the end of an episode there are fewer: int [time] counts those that there are.
    """
    length = len(rewards)
    padded = np.concatenate([rewards, np.zeros(steps)])
    sums = sum(discount**i * padded[i : i + length] for i in range(steps))
    return sums, np.minimum(steps, length - np.arange(length))


def projected(atoms, moved, probabilities):
    """Float32 [batch, atoms]: the distribution of `moved` on the fixed, evenly spaced `atoms`.

    Each moved atom gives its probability to its two neighbours, by nearness; atoms beyond the
    ends give it to the end (Bellemare et al. 2017, algorithm 1).

    Args:
      atoms: float32 [atoms], ascending.
      moved, probabilities: float32 [batch, atoms], the target's atoms `r + discount * atom`.
    """
    gap = atoms[1] - atoms[0]
    moved = tf.clip_by_value(moved, atoms[0], atoms[-1])
    moved, probabilities = (tf.reshape(x, [-1, 1, len(atoms)]) for x in (moved, probabilities))
    near = tf.nn.relu(1.0 - tf.abs(moved - tf.reshape(atoms, [1, -1, 1])) / gap)
    return tf.reduce_sum(near * probabilities, axis=2)


def perceptron(weights, x, relu=tf.nn.relu):
    """The linear last layer of a network of `[kernel, bias, kernel, bias, ...]`, any array kind."""
    for kernel, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = relu(x @ kernel + bias)
    return x @ weights[-2] + weights[-1]


class Learner(tf.Module):
    """Actor, critic, their targets and Adam's moments. Actions are scaled to [-1, 1]."""

    def __init__(self, settings: Settings, sizes: tuple[int, ...], replicator: Replicator):
        super().__init__()
        observations, actions = sizes
        self.settings, self.replicator = settings, replicator
        self.atoms = np.linspace(settings.lowest, settings.highest, ATOMS, dtype=np.float32)
        rng, hidden = np.random.default_rng(settings.seed), [settings.hidden] * 2
        actor = layers(rng, [observations, *hidden, actions])
        critic = layers(rng, [observations + actions, *hidden, ATOMS])
        self.actor, self.target_actor = ([tf.Variable(a) for a in actor] for _ in range(2))
        self.critic, self.target_critic = ([tf.Variable(a) for a in critic] for _ in range(2))
        zeros = [np.zeros_like(array) for array in actor + critic]
        self.first, self.second = ([tf.Variable(z) for z in zeros] for _ in range(2))
        self.step = tf.Variable(0)
        self.adam = OptimizerConfig(learning_rate=settings.learning_rate)

    def values(self, critic, observation, action):
        """Float32 [batch, atoms]: logits of the return's distribution."""
        return perceptron(critic, tf.concat([observation, action], axis=1))

    def losses(self, batch):
        """The critic's cross-entropy to its target, and minus the value of the actor's actions."""
        action = tf.tanh(perceptron(self.target_actor, batch["after"]))
        later = tf.nn.softmax(self.values(self.target_critic, batch["after"], action))
        moved = batch["reward"] + batch["discount"] * tf.reshape(self.atoms, [1, -1])
        target = tf.stop_gradient(projected(self.atoms, moved, later))
        logits = self.values(self.critic, batch["observation"], batch["action"])
        critic_loss = -tf.reduce_mean(tf.reduce_sum(target * tf.nn.log_softmax(logits), axis=1))
        action = tf.tanh(perceptron(self.actor, batch["observation"]))
        chosen = tf.nn.softmax(self.values(self.critic, batch["observation"], action))
        return critic_loss, -tf.reduce_mean(tf.reduce_sum(chosen * self.atoms, axis=1))

    def learn(self, batch):
        """One update of everything: the step that the Replicator runs."""
        with tf.GradientTape(persistent=True) as tape:
            critic_loss, actor_loss = self.losses(batch)
        gradients = tape.gradient(actor_loss, self.actor) + tape.gradient(critic_loss, self.critic)
        gradients = self.replicator.all_reduce(gradients, "mean")
        live, targets = self.actor + self.critic, self.target_actor + self.target_critic
        moved, first, second = adam(
            self.adam, self.adam.learning_rate, self.step, live, gradients, self.first, self.second
        )
        copy = tf.cast(tf.equal((self.step + 1) % TARGET_UPDATES, 0), tf.float32)
        copied = [copy * m + (1.0 - copy) * t for m, t in zip(moved, targets, strict=True)]
        self.replicator.update(
            [*live, *targets, *self.first, *self.second, self.step],
            [*moved, *copied, *first, *second, self.step + 1],
        )
        return {"critic_loss": critic_loss, "value": -actor_loss / self.settings.reward_scale}


def layers(rng, widths):
    """Float32 kernels and biases of a perceptron, uniform within 1/sqrt(inputs)."""
    arrays = []
    for inputs, outputs in itertools.pairwise(widths):
        limit = inputs**-0.5
        arrays += [rng.uniform(-limit, limit, [inputs, outputs]), np.zeros(outputs)]
    return [array.astype(np.float32) for array in arrays]


class Replay:
    """The last transitions, drawn from uniformly."""

    def __init__(self, settings: Settings, rng):
        self.settings, self.rng = settings, rng
        self.rows: dict[str, np.ndarray] = {}

    def add(self, observations, actions, rewards, ended: bool):
        """Adds an episode: arrays [time + 1, ...], [time, ...], [time]; ended: not just cut off."""
        sums, counts = n_step(rewards * self.settings.reward_scale, DISCOUNT, RETURNS)
        last = np.arange(len(rewards)) + counts
        discounts = np.where((last == len(rewards)) & ended, 0.0, DISCOUNT**counts)
        pieces = observations[:-1], actions, sums[:, None], discounts[:, None], observations[last]
        for key, new in zip(KEYS, pieces, strict=True):
            rows = np.concatenate([self.rows.get(key, new[:0]), new])
            self.rows[key] = rows[-REMEMBERED:].astype(np.float32)

    def dataset(self, batches: int):
        """A tf.data.Dataset of that many global batches."""
        chosen = self.rng.integers(len(self.rows["reward"]), size=[batches, self.settings.batch])
        drawn = {key: rows[chosen] for key, rows in self.rows.items()}
        return tf.data.Dataset.from_tensor_slices(drawn)


def play(task, policy, seed: int):
    """An episode: its observations, actions and rewards, and whether it ended by itself."""
    observations, actions, rewards, over = [task.reset(seed=seed)[0]], [], [], False
    while not over:
        actions.append(policy(observations[-1]))
        observation, reward, ended, cut, _ = task.step(actions[-1])
        observations.append(observation)
        rewards.append(reward)
        over = ended or cut
    return np.stack(observations), np.stack(actions), np.array(rewards), ended


def acting(learner: Learner, rng=None, noise: float = 0.0):
    """The actor of this moment, in numpy, as a policy: observation -> action in [-1, 1]."""
    weights = [weight.numpy() for weight in learner.actor]

    def policy(observation):
        action = np.tanh(perceptron(weights, observation, relu=lambda x: np.maximum(x, 0.0)))
        drawn = rng.normal(0.0, noise, action.shape) if noise else 0.0
        return np.clip(action + drawn, -1.0, 1.0).astype(np.float32)

    return policy


def score(task, policy, episodes: int = 20):
    """Float64 [episodes]: returns from as many fixed starts."""
    return np.array([play(task, policy, seed=10**6 + i)[2].sum() for i in range(episodes)])


def draw(path: Path, curve, by_chance):
    """Writes the learning curve beside the random policy as a PNG."""
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot(*np.transpose(curve), label="D4PG, with exploration noise")
    axes.axhline(np.mean(by_chance), color="grey", linestyle="--", label="random policy")
    axes.set(xlabel="environment steps", ylabel="return of an episode")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def train(settings: Settings) -> None:
    """Acts and learns alternately, and leaves curve and weights in `settings.out`."""
    replicator = strategies.from_environment(settings.strategy)
    if settings.updates % settings.updates_per_call:
        raise UserError("`updates` must be a multiple of `updates_per_call`.")
    task = gymnasium.make(settings.task)
    task = gymnasium.wrappers.RescaleAction(task, np.float32(-1.0), np.float32(1.0))
    rng = np.random.default_rng([settings.seed, replicator.worker_index])
    observations, actions = task.observation_space.shape or (), task.action_space.shape or ()
    by_chance = score(task, lambda _: rng.uniform(-1.0, 1.0, actions).astype(np.float32))
    with replicator.scope():
        learner = Learner(settings, observations + actions, replicator)
    learn = replicator.compile(learner.learn, settings.updates_per_call)
    replay, curve, steps = Replay(settings, rng), [], 0
    with Progress(settings.episodes, "d4pg", "episode") as progress:
        for _ in range(settings.episodes):
            played = play(task, acting(learner, rng, settings.noise), int(rng.integers(2**31)))
            replay.add(*played)
            batches = iter(replicator.batches(replay.dataset(settings.updates)))
            for _ in range(settings.updates // settings.updates_per_call):
                figures = learn(batches)
            steps += len(played[2])
            curve.append((steps, played[2].sum()))
            progress.advance(episode_return=curve[-1][1], value=float(figures["value"]))
    if replicator.is_chief:
        report(settings, learner, curve, by_chance, score(task, acting(learner)))


def report(settings: Settings, learner: Learner, curve, by_chance, learned) -> None:
    """Writes curve and weights, and prints what was learned."""
    weights = {str(i): v.numpy() for i, v in enumerate(learner.variables)}
    Checkpoints(settings.out / "checkpoints").save(int(learner.step.numpy()), weights)
    draw(settings.out / "curve.png", curve, by_chance)
    np.savetxt(settings.out / "curve.csv", curve, "%.6g", ",", header="steps,return", comments="")
    for name, found in (("random policy", by_chance), ("D4PG without noise", learned)):
        print(f"{name}: return {found.mean():.1f} +- {found.std():.1f} over {len(found)} episodes")


def main(arguments=None) -> None:
    """Reads the command line and learns."""
    settings = tyro.cli(Settings, args=arguments, description=__doc__)
    with in_one_line("d4pg"):
        train(settings)


if __name__ == "__main__":
    main()
