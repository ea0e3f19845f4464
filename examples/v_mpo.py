"""V-MPO learns to swing up a pendulum: on-policy, from the better half of its own actions.

    python -m examples.v_mpo --out runs/v_mpo

Song et al. 2020, "V-MPO: On-Policy Maximum a Posteriori Policy Optimization for Discrete and
Continuous Control" (arXiv 1909.12238): a value function in place of MPO's critic of actions. It
should reach a return of at least -200 in a minute of one core; docs/examples.md has that of every
seed.
"""

import dataclasses

import tensorflow as tf

from examples import control
from examples.control import perceptron
from examples.trust_region import GaussianPolicy, temperature, tempered


@dataclasses.dataclass(frozen=True)
class Settings(control.Settings):
    """Learn a control task of gymnasium by V-MPO."""

    episodes: int = 800
    """Episodes to learn from."""
    episodes_per_round: int = 20
    """Episodes between two phases of learning."""
    remembered: int = 4000
    """Number of newest transitions to learn from: those of a round."""
    updates: int = 200
    """Updates per phase of learning."""
    target_updates: int = 50
    """Updates between copies to the target networks."""
    hidden: int = 64
    """Width of both hidden layers of actor and critic."""
    batch: int = 256
    """Transitions in the global batch."""
    learning_rate: float = 5e-4
    """Learning rate of Adam for both."""
    discount: float = 0.95
    """Discount of rewards per step."""
    returns: int = 10
    """Rewards that are summed before the value function's estimate is added."""
    bound: float = 0.1
    """Bound of the weights' KL divergence to the better half of the actions, nats."""
    mean_bound: float = 0.01
    """Bound of the KL divergence to the previous policy due to the mean, nats."""
    deviation_bound: float = 5e-4
    """Bound of the KL divergence to the previous policy due to the deviation, nats."""


class Learner(GaussianPolicy):
    """Actor and value function."""

    settings: Settings

    def __init__(self, settings: Settings, observations: int, actions: int, replicator):
        super().__init__(settings, observations, (2 * actions, 1), observations, replicator)

    def loss(self, batch):
        """Return the loss and metrics, see control.Learner."""
        ahead, here = (
            perceptron(self.target_critic, batch[key]) for key in ("after", "observation")
        )
        returns = tf.stop_gradient(batch["reward"] + batch["discount"] * ahead)
        value = perceptron(self.critic, batch["observation"])
        critic_loss = tf.reduce_mean(tf.square(returns - value)) / 2.0
        advantage = tf.stop_gradient(returns - here)[:, 0]
        everywhere = tf.reshape(self.replicator.all_gather(advantage), [-1])
        better = tf.math.top_k(everywhere, everywhere.shape[0] // 2).values
        eta = temperature(better, self.settings.bound)
        _, divergence = tempered(better, eta)
        # Softmax over the better half of all replicas' actions; each replica has its rows of it,
        # and the mean over the replicas turns it into a sum.
        weights = tf.exp(advantage / eta - tf.reduce_logsumexp(better / eta))
        weights *= tf.cast(everywhere.shape[0], tf.float32)
        weights = tf.where(advantage >= better[-1], weights, 0.0)
        fitted = self.policy_loss(batch, batch["action"], weights)
        figures = {"critic_loss": critic_loss, "temperature": eta, "divergence": divergence,
                   "value": tf.reduce_mean(value) / self.settings.reward_scale}  # fmt: skip
        return critic_loss + fitted, figures


def main(arguments=None) -> None:
    """Read the command line and train."""
    control.run("V-MPO", Settings, Learner, __doc__, arguments)


if __name__ == "__main__":
    main()
