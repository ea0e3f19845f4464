"""A contract of import-linter: no file imports itself by way of others."""

import graphlib

from importlinter import Contract, ContractCheck, output


class NoCircles(Contract):
    """Refuses a circle of imports between files, whichever packages they lie in."""

    def check(self, graph, verbose):
        files = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
        circle = []
        try:
            graphlib.TopologicalSorter(files).prepare()
        except graphlib.CycleError as error:
            circle = error.args[1]
        return ContractCheck(kept=not circle, metadata={"circle": circle})

    def render_broken_contract(self, check):
        output.print_error(" <- ".join(check.metadata["circle"]))
