.PHONY: check format lint types docs tests integration torch fix protos

check: format lint types docs tests

format:
	ruff format --check .

lint:
	ruff check .
	lint-imports --no-cache

types:
	mypy

docs:
	# Quiet, it would not count the warnings for which it is strict.
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict --site-dir site

tests:
	python -m pytest

integration:
	python -m pytest -m integration -n 3 --dist loadfile

# The tests of PyTorch networks, quick and integration, which are skipped where torch is missing.
torch:
	python -m pytest -m "not slow" -n 2 tests/onepass/networks/torch_networks \
		tests/onepass/test_torch_network.py tests/benchmarks/test_torch_benchmark.py \
		tests/examples/test_torch_examples.py

fix:
	ruff check --fix .
	ruff format .

# Needs grpcio-tools. The descriptors are committed: installing takes no compiler.
protos:
	cd serving/grpc/protos && python -m grpc_tools.protoc -I. --include_imports \
		--descriptor_set_out=services.binpb \
		tensorflow.proto tensorflow/serving.proto inference.proto onepass.proto
