"""`onepass launch`: a cluster of processes on this machine, or commands for other machines."""

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence

from onepass.foundation.errors import UserError
from onepass.replicator.launch.arguments import LaunchArguments, check
from onepass.replicator.launch.supervisor import Supervisor
from onepass.replicator.launch.tf_config import OWN_PROGRAMS, Shape, visible_gpus, with_strategy

WORKERS = 2
DESCRIPTION = """Run a command as a cluster of processes, each with its TF_CONFIG. The command, any
program, follows ` -- `. `--strategy` is added to an onepass training command that lacks it.

  onepass launch --workers 2 -- onepass train wavenet-cpu-16k --data speech --workdir run
  onepass launch --workers 2 --servers 1 --restarts 20 -- onepass train ...
  onepass launch --hosts a:2222,b:2222 -- onepass train ...    # prints each machine's command

Every line of output starts with the task's name. The first failure ends all tasks and determines
the exit status. Ctrl-C, SIGTERM and SIGHUP are forwarded, so training saves and exits."""


def run(
    arguments: list[str], parse: Callable[..., LaunchArguments], own_program: Sequence[str]
) -> int:
    """Run `onepass launch ARGUMENTS`; `own_program` is the command of this installation."""
    own, command = _split(arguments)
    given = parse(LaunchArguments, own, "onepass launch", description=DESCRIPTION)
    if not command:
        raise UserError(
            "The command must follow ` -- `, as in onepass launch --workers 2 -- onepass train ... "
            "(see onepass launch --help)."
        )
    check(given)
    shape = _shape(given)
    command = with_strategy(command, shape)
    if given.hosts:
        print(_commands(shape, command, given.addresses))
        return 0
    command = _runnable(command, own_program)
    if given.log_dir is not None:
        given.log_dir.mkdir(parents=True, exist_ok=True)
    gpus = visible_gpus()
    if 0 < len(gpus) < shape.workers:
        print(
            f"onepass launch: {len(gpus)} GPU(s) for {shape.workers} workers: all workers run on "
            "the CPU.",
            file=sys.stderr,
        )
    return Supervisor(shape.local_tasks, command, given).run()


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    middle = arguments.index("--")
    return arguments[:middle], arguments[middle + 1 :]


def _shape(given: LaunchArguments) -> Shape:
    workers, hosts = given.workers, given.addresses
    if workers is None and hosts:
        workers = len(hosts) - (given.servers + 1 if given.servers else 0)
    shape = Shape(WORKERS if workers is None else workers, given.servers)
    if given.hosts and len(hosts) != shape.size:
        kinds = ", ".join(f"{count} {kind}" for kind, count in shape.counts.items())
        raise UserError(
            f"`--hosts` must have {shape.size} addresses HOST:PORT ({kinds}), got {len(hosts)}."
        )
    return shape


def _commands(shape: Shape, command: Sequence[str], addresses: Sequence[str]) -> str:
    lines = []
    for task in shape.tasks(addresses):
        lines += [f"# on {task.address}: {task.name}"]
        lines += [f"TF_CONFIG={shlex.quote(task.tf_config)} {shlex.join(command)}"]
    return "\n".join(lines)


def _runnable(command: Sequence[str], own_program: Sequence[str]) -> list[str]:
    if not sys.platform.startswith("linux"):
        raise UserError("`onepass launch` runs processes on Linux only; --hosts works everywhere.")
    if command[0] in OWN_PROGRAMS[:1]:
        return [*own_program, *command[1:]]
    if shutil.which(command[0]) is None:
        raise UserError(f"There is no program `{command[0]}`.")
    return list(command)
