"""The kinds of models that a bundle may hold, as `kind` of model.json names them."""

from typing import NamedTuple

_SOUND, _IMAGES = "serving.bundles.audio_signatures", "serving.bundles.image_signatures"


class Kind(NamedTuple):
    """How models of one kind are exported and computed.

    Attributes:
      package: package whose module `model` reads a model folder, whose module `card` measures a run
        and writes its model folder, and whose module `portable` writes the sampler as functions
        that JAX can run; "" for a user's model, which `onepass.save` writes.
      signatures: name of the module with `export_functions`.
      network: key of the configuration under which the network's dtype is stored; "" for images,
        which are drawn in float32.
      sampler: name of the module that samples by Numba; "": there is none.
      is_fast: whether that sampler is faster than the program where there is no accelerator.
    """

    package: str = ""
    signatures: str = ""
    network: str = ""
    sampler: str = ""
    is_fast: bool = False


KINDS = {
    "autoregressive": Kind(),
    "flow-student": Kind(),
    "wavenet": Kind("wavenet", _SOUND, "network", "wavenet.samplers.generation"),
    "parallel-wavenet": Kind("distill", _SOUND, "student", "distill.generation", is_fast=True),
    "pixelcnn": Kind("pixelcnn", _IMAGES),
    "multiscale": Kind("pixelcnn", _IMAGES),
}
