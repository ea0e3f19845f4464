"""MPO learns to swing up a pendulum: actions weighted by a critic, a Gaussian fitted to them.

    python -m examples.mpo --out runs/mpo

Abdolmaleki et al. 2018, "Maximum a Posteriori Policy Optimisation" (arXiv 1806.06920), with the
replay, the n-step returns and the categorical critic of d4pg.py in place of Retrace. It should
reach a return of at least -200 in a minute of one core, though some seeds end with one swing too
many (-216); docs/examples.md has all measured seeds.
"""

import dataclasses

import tensorflow as tf

from examples import control, d4pg
from examples.trust_region import GaussianPolicy, gaussian, temperature, tempered


@dataclasses.dataclass(frozen=True)
class Settings(d4pg.CriticSettings):
    """Learn a control task of gymnasium by MPO."""

    episodes: int = 100
    """Episodes to learn from."""
    hidden: int = 64
    """Width of both hidden layers of actor and critic."""
    samples: int = 10
    """Weighted actions of the target policy per transition."""
    bound: float = 0.1
    """Bound of the weights' KL divergence to the previous policy, nats."""
    mean_bound: float = 0.05
    """Bound of the KL divergence to the previous policy due to the mean, nats."""
    deviation_bound: float = 5e-4
    """Bound of the KL divergence to the previous policy due to the deviation, nats."""


class Learner(GaussianPolicy, d4pg.CategoricalCritic):
    """A learner that fits actions of the target policy, weighted by the target critic."""

    settings: Settings

    def __init__(self, settings: Settings, observations: int, actions: int, replicator):
        super().__init__(settings, observations, actions, replicator, 2)
        self.draws = settings.samples

    def drawn(self, observation, draws):
        """Return actions of the target policy, float32 [samples, batch, actions], and their logits.

        They are clipped as the task clips them; otherwise the mean would follow them beyond the
        bounds.
        """
        mean, deviation = gaussian(self.target_actor, observation)
        actions = tf.clip_by_value(mean + deviation * tf.transpose(draws, [1, 0, 2]), -1.0, 1.0)
        seen = tf.broadcast_to(observation, [*actions.shape[:-1], observation.shape[-1]])
        return actions, self.logits(self.target_critic, seen, actions)

    def loss(self, batch):
        """Return the loss and metrics, see control.Learner."""
        _, later = self.drawn(batch["after"], batch["draws"][:, :1])
        critic_loss = self.critic_loss(batch, later[0])
        actions, logits = self.drawn(batch["observation"], batch["draws"])
        values = tf.transpose(self.mean(logits))
        everywhere = self.replicator.all_gather(values)
        eta = temperature(everywhere, self.settings.bound)
        weights, divergence = tempered(values, eta)
        fitted = self.policy_loss(batch, actions, tf.transpose(tf.stop_gradient(weights)))
        figures = {"critic_loss": critic_loss, "temperature": eta, "divergence": divergence,
                   "value": tf.reduce_mean(values) / self.settings.reward_scale}  # fmt: skip
        return critic_loss + fitted, figures


def main(arguments=None) -> None:
    """Read the command line and train."""
    control.run("MPO", Settings, Learner, __doc__, arguments)


if __name__ == "__main__":
    main()
