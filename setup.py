"""Install the packages of onepass and its command, `onepass`."""

import re
from pathlib import Path

from setuptools import find_packages, setup

PACKAGES = ("wavenet", "pixelcnn", "distill", "serving", "onepass")

EXAMPLES = ["gymnasium>=1.0"]
CLIENT = ["grpcio>=1.70", "httpx>=0.27", "protobuf>=6", "stamina>=25.2"]
SERVE = [
    *CLIENT,
    "grpcio-health-checking>=1.70",
    "grpcio-reflection>=1.70",
    "orjson>=3.10",
    "prometheus-client>=0.21",
    "pydantic>=2.10",
    "starlette>=0.45",
    "tensorflow-serving-api>=2.21",  # writes the warm-up requests of an export
    "uvicorn>=0.34",
]
PEERS = ["openai>=1.60", "playwright>=1.50", "schemathesis>=4.0", "tritonclient[http]>=2.55"]
TRACES = ["opentelemetry-exporter-otlp-proto-http>=1.30", "opentelemetry-sdk>=1.30"]
# Metrics that compare audio with a recording; pesq and pyworld are built from source.
QUALITY = [
    "pesq>=0.0.4",
    "pystoi>=0.4.1",
    "pyworld>=0.3.5",
    "setuptools<82",  # pyworld imports pkg_resources, which 82 dropped
]
# Opinion scores predicted by DNSMOS and PLCMOS; speechmos does not declare its dependencies.
LISTENING = ["onnxruntime>=1.20", "speechmos>=0.0.1.1"]
FFMPEG = ["av>=14"]  # reads joined compressed sound files, and those with wrong headers
SIGN = ["cryptography>=44"]
COMPRESS = ["constriction>=0.5,<0.6"]
JXL = ["pillow-jxl-plugin>=1.3"]
DOCS = ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.27"]
TEST = [
    *COMPRESS,
    *EXAMPLES,
    *FFMPEG,
    *JXL,
    *LISTENING,
    *QUALITY,
    *SERVE,
    *PEERS,
    *SIGN,
    *TRACES,
    "ai-edge-litert>=2.1",  # runs what `export --format tflite` writes
    "hypothesis>=6.120",
    "import-linter>=2.5",
    "jax",
    "kubernetes-validate>=1.33",
    "pytest>=8.0",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "pyyaml>=6.0",
]

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "onepass/__init__.py").read_text())[1]

setup(
    name="onepass",
    version=VERSION,
    description="Fast inference for autoregressive generative models of sound and images.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    # No release of TensorFlow has a wheel for Python 3.14: 2.22.0rc0 is the first candidate.
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=[*PACKAGES, *(f"{name}.*" for name in PACKAGES)]),
    package_data={
        "wavenet": ["presets.toml", "shipped/**"],
        "pixelcnn": ["presets.toml", "shipped/**"],
        "distill": ["presets.toml", "images/presets.toml", "shipped/**"],
        "onepass.foundation": ["*.toml"],
        "onepass.speech": ["shipped/**", "*.toml", "*.md"],
        "serving": ["grpc/protos/**", "page/*"],
    },
    # The models of objects are kept only in the source tree, for measurements that use them: a
    # package index accepts at most 100 MB.
    exclude_package_data={"": ["*/__pycache__/*"], "pixelcnn": ["shipped/objects*"]},
    include_package_data=False,
    install_requires=[
        "matplotlib>=3.9",
        "numba>=0.62",
        "numpy>=2.0",
        "pillow>=11.0",
        "safetensors>=0.8",
        "scipy>=1.15",
        "soundfile>=0.13",  # the first with a FLAC compression level
        "soxr>=0.5",
        "tensorboard>=2.20",
        "tensorflow>=2.21",
        "tensorflow-probability[tf]>=0.25",  # [tf] brings the tf_keras of the same TensorFlow
        "tqdm>=4.66",
        "tyro>=0.9",
    ],
    extras_require={
        "client": CLIENT,
        "compress": COMPRESS,
        "docs": DOCS,
        "examples": EXAMPLES,
        "ffmpeg": FFMPEG,
        "jax": ["jax"],
        "jxl": JXL,
        "listening": LISTENING,
        "quality": QUALITY,
        "ray": [*SERVE, "ray[serve]>=2.60"],
        "serve": SERVE,
        "sign": SIGN,
        "tfds": ["tensorflow-datasets"],
        "test": TEST,
        "torch": ["torch>=2.13"],
        "traces": TRACES,
        # The next minor release of ruff may format the same code differently.
        "dev": [*TEST, *DOCS, "build>=1.2", "mypy>=1.15", "nox>=2024.10", "ruff>=0.17,<0.18"],
    },
    classifiers=[
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    entry_points={"console_scripts": ["onepass = onepass.command.verbs:main"]},
)
