"""D4PG learns to swing up a pendulum: a distributional critic, n-step returns, replay.

    pip install onepass[examples]
    python -m examples.d4pg --out runs/d4pg
    python -m examples.d4pg --out runs/d4pg --strategy local:2

Barth-Maron et al. 2018, "Distributed Distributional Deterministic Policy Gradients", with the
categorical critic of Bellemare et al. 2017. It should reach a return of at least -200, compared
with -1160 of a random policy, in a minute or two on two cores; docs/examples.md has that of every
seed.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from examples import control
from examples.control import perceptron
from onepass.replicator import Replicator

ATOMS = 51


@dataclasses.dataclass(frozen=True)
class CriticSettings(control.Settings):
    """Settings of an agent with a categorical critic."""

    episodes: int = 50
    """Episodes to learn from."""
    lowest: float = -150.0
    """Lowest atom, in scaled return."""
    highest: float = 0.0
    """Highest atom, in scaled return."""


@dataclasses.dataclass(frozen=True)
class Settings(CriticSettings):
    """Learn a control task of gymnasium by D4PG."""

    noise: float = 0.3
    """Standard deviation of the exploration noise; actions are within [-1, 1]."""
    penalty: float = 0.01
    """Weight of the mean square of the input of the actor's tanh, which saturates without it."""


def projected(atoms, moved, probabilities):
    """Return the distribution of `moved` on fixed, evenly spaced `atoms`, float32 [batch, atoms].

    The probability of each moved atom, `r + discount * atom`, is divided between its two neighbours
    by distance; atoms beyond the ends give it to the end (Bellemare et al. 2017, algorithm 1).
    """
    gap = atoms[1] - atoms[0]
    moved = tf.clip_by_value(moved, atoms[0], atoms[-1])
    moved, probabilities = (tf.reshape(x, [-1, 1, len(atoms)]) for x in (moved, probabilities))
    near = tf.nn.relu(1.0 - tf.abs(moved - tf.reshape(atoms, [1, -1, 1])) / gap)
    return tf.reduce_sum(near * probabilities, axis=2)


class CategoricalCritic(control.Learner):
    """A learner whose critic returns the distribution of an action's return.

    The actor has `outputs` per number of an action.
    """

    def __init__(
        self,
        settings: CriticSettings,
        observations: int,
        actions: int,
        replicator: Replicator,
        outputs: int = 1,
    ):
        sizes = observations, (outputs * actions, ATOMS), observations + actions
        super().__init__(settings, *sizes, replicator)
        self.atoms = np.linspace(settings.lowest, settings.highest, ATOMS, dtype=np.float32)

    def logits(self, critic, observation, action):
        """Return the logits of the return's distribution, float32 [..., atoms]."""
        return perceptron(critic, tf.concat([observation, action], axis=-1))

    def mean(self, logits):
        """Return the mean return, scaled, of a distribution, float32 [...]."""
        return tf.reduce_sum(tf.nn.softmax(logits) * self.atoms, axis=-1)

    def critic_loss(self, batch, later):
        """Return the cross-entropy to `later`, logits [batch, atoms] after the batch's steps."""
        moved = batch["reward"] + batch["discount"] * tf.reshape(self.atoms, [1, -1])
        target = tf.stop_gradient(projected(self.atoms, moved, tf.nn.softmax(later)))
        logits = self.logits(self.critic, batch["observation"], batch["action"])
        return -tf.reduce_mean(tf.reduce_sum(target * tf.nn.log_softmax(logits), axis=1))


class Learner(CategoricalCritic):
    """D4PG: the actor follows the gradient of the critic's mean."""

    settings: Settings

    def act(self, weights, observation, rng):
        """Return an action, see control.Learner."""
        action = np.tanh(perceptron(weights, observation, np))
        drawn = 0.0 if rng is None else rng.normal(0.0, self.settings.noise, action.shape)
        return np.clip(action + drawn, -1.0, 1.0)

    def loss(self, batch):
        """Return the loss and metrics, see control.Learner."""
        action = tf.tanh(perceptron(self.target_actor, batch["after"]))
        later = self.logits(self.target_critic, batch["after"], action)
        critic_loss = self.critic_loss(batch, later)
        drive = perceptron(self.actor, batch["observation"])
        fixed = [tf.stop_gradient(weight) for weight in self.critic]
        logits = self.logits(fixed, batch["observation"], tf.tanh(drive))
        value = tf.reduce_mean(self.mean(logits))
        actor_loss = self.settings.penalty * tf.reduce_mean(tf.square(drive)) - value
        figures = {"critic_loss": critic_loss, "value": value / self.settings.reward_scale}
        return critic_loss + actor_loss, figures


def main(arguments=None) -> None:
    """Read the command line and train."""
    control.run("D4PG", Settings, Learner, __doc__, arguments)


if __name__ == "__main__":
    main()
