"""Samplers of the image models, and image files that show what they sample."""

from typing import TYPE_CHECKING

from replicator.runs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from pixelcnn.sampling.fixed_point_sampler import sample_by_fixed_point as sample_by_fixed_point
    from pixelcnn.sampling.generation import ImageSampler as ImageSampler
    from pixelcnn.sampling.generation import Request as Request
    from pixelcnn.sampling.multiscale_sampler import SamplingInputs as SamplingInputs
    from pixelcnn.sampling.multiscale_sampler import sample_scales as sample_scales
    from pixelcnn.sampling.pixelcnn_sampler import Given as Given
    from pixelcnn.sampling.pixelcnn_sampler import sample as sample
    from pixelcnn.sampling.pixelcnn_sampler import sample_naively as sample_naively

_PLACES = {
    "Given": "pixelcnn_sampler",
    "ImageSampler": "generation",
    "Request": "generation",
    "SamplingInputs": "multiscale_sampler",
    "sample": "pixelcnn_sampler",
    "sample_by_fixed_point": "fixed_point_sampler",
    "sample_naively": "pixelcnn_sampler",
    "sample_scales": "multiscale_sampler",
}
__all__ = list(_PLACES)
__getattr__ = lazy_exports(__name__, _PLACES)
