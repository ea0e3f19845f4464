.PHONY: check format lint types docs tests fix

check: format lint types docs tests

format:
	ruff format --check .

lint:
	ruff check .

types:
	mypy

docs:
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet --site-dir site

tests:
	python -m pytest

fix:
	ruff check --fix .
	ruff format .
