"""Decorators by which Numba compiles the machine: entries, and the functions that these call.

Numba optimises every function with all that it calls, makes machine code of it, and then does so
again for each of its callers. Here a function that only compiled functions call ends as LLVM IR,
which its callers link: entries alone are optimised and made machine code of. The first run of the
machine takes 9 s of a processor in place of 24, and its machine code is as fast.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba import _dynfunc  # type: ignore[attr-defined]  # has no stub
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering

_OPTIONS: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
_NO_WRAPPERS = {"nopython": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class _LinkedCode(JITCodeLibrary):
    """LLVM IR that callers link, optimise and make machine code of."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerForCallers(NativeLowering):
    """The translation of a function to code that its callers link."""

    _name = "lower_for_callers"

    def run_pass(self, state: Any) -> bool:
        """Translate the function, and let others call it."""
        name = state.func_id.func_qualname
        state.library = _LinkedCode(state.targetctx.codegen(), name)
        state.flags.no_compile = True
        super().run_pass(state)
        made = state["cr"]
        # Callers find the function by this object, which has no machine code.
        entry_point = _dynfunc.make_function(inspect.getmodule(self), name, name, 0, made.env, ())
        state.targetctx.insert_user_function(entry_point, made.fndesc, [state.library])
        state.library.finalize()
        state["cr"] = made._replace(cfunc=entry_point)
        return True


class _CompilerForCallers(Compiler):
    """Numba's compiler with `_LowerForCallers`."""

    def define_pipelines(self) -> list:
        """See `Compiler.define_pipelines`."""
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [
                (_LowerForCallers if each is NativeLowering else each, words)
                for each, words in pipeline.passes
            ]
            pipeline._finalized = False
            pipeline.finalize()
        return pipelines


class _Callee(CPUDispatcher):
    """A function that only compiled functions call."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Raise TypeError: there is no machine code that Python could call."""
        raise TypeError(f"`{self.py_func.__name__}` must be called by compiled functions.")


def compiled(function: Callable[..., Any]) -> Any:
    """Return a function that compiled functions may call, and Python may not.

    It may raise an error of constants at most, and print nothing: it has no objects of Python.
    """
    options = {**_OPTIONS, **_NO_WRAPPERS}
    return _Callee(function, targetoptions=options, pipeline_class=_CompilerForCallers)


def entry(function: Callable[..., Any], parallel: bool = False) -> Any:
    """Compile a function with Numba; the code is cached on disk if its folder is writable."""
    options = {**_OPTIONS, "parallel": parallel}
    try:
        made: Any = numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return numba.njit(**options)(function)
    # Numba checks only the file of `function`, and would use stale code of functions that it calls.
    made._cache._cache_file._source_stamp = _stamp(function)
    for name in ("load_overload", "save_overload"):  # the disk may be full or read-only
        setattr(made._cache, name, functools.partial(_unless_refused, getattr(made._cache, name)))
    return made


def _stamp(function: Callable[..., Any]) -> tuple:
    folders = {Path(__file__).parent, Path(inspect.getfile(function)).parent}
    files = sorted(file for folder in folders for file in folder.glob("*.py"))
    return tuple((str(file), file.stat().st_mtime, file.stat().st_size) for file in files)


def _unless_refused(function: Callable[..., Any], *arguments: Any) -> Any:
    with contextlib.suppress(OSError):
        return function(*arguments)
