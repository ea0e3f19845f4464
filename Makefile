.PHONY: check format lint types tests fix

check: format lint types tests

format:
	ruff format --check .

lint:
	ruff check .

types:
	mypy

tests:
	python -m pytest

fix:
	ruff check --fix .
	ruff format .
