"""The verb `export`; what exports is imported once its options are read."""

from serving.bundles.export_arguments import ExportArguments


def run_export(arguments: list[str], parse) -> int:
    """Parses `onepass export ...`, measures a run on dev and writes the bundle."""
    given = parse(ExportArguments, arguments, "onepass export")
    from serving.bundles.export import export  # which needs TensorFlow, as no help text does

    for line in export(given):
        print(line)
    return 0
