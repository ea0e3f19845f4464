"""Files that start a cluster on other machines: commands, a Kubernetes Job, a Slurm job."""

import json
import math
import re
import shlex
from collections.abc import Sequence
from typing import Any

import yaml  # type: ignore[import-untyped]

from replicator.launch.arguments import LaunchArguments
from replicator.launch.tf_config import Shape

PORT = 2222  # in a pod, which has its own address
FIRST_PORT, PORTS = 20_000, 10_000  # range for Slurm jobs, by job id
RETRIES = 100  # of pods, without --restarts
# Other strings are quoted: `1e3` is a string in PyYAML (YAML 1.1) and a number to other readers.
PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]+")
IDENTITY = {
    False: "type=worker index=$number",
    True: """if [ "$number" -eq 0 ]; then type=chief index=0
elif [ "$number" -le {workers} ]; then type=worker index=$((number - 1))
else type=ps index=$((number - {workers} - 1)); fi""",
}


def commands(shape: Shape, command: Sequence[str], addresses: Sequence[str]) -> str:
    """Return the command line for each of the machines, HOST:PORT."""
    lines = []
    for task in shape.tasks(addresses):
        words = shlex.join(command)
        lines += [f"# on {task.address}: {task.name}"]
        lines += [f"TF_CONFIG={shlex.quote(task.tf_config)} {words}"]
    return "\n".join(lines)


def task_shell(shape: Shape, number: str, cluster: str) -> str:
    """Return sh lines that set TF_CONFIG of one task, from two shell expressions.

    `number` is that of the task in the order of `Shape.tasks`, `cluster` the JSON of the addresses.
    """
    return (
        f"number={number}\n"
        f"{IDENTITY[bool(shape.servers)].format(workers=shape.workers)}\n"
        f"cluster={cluster}\n"
        'task="{\\"type\\": \\"$type\\", \\"index\\": $index}"\n'
        'export TF_CONFIG="{\\"cluster\\": $cluster, \\"task\\": $task}"\n'
        'exec "$@"'
    )


def kubernetes(job: LaunchArguments, shape: Shape, command: Sequence[str]) -> str:
    """Return a headless Service and an indexed Job as YAML for `kubectl apply -f`."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.name},
        "spec": {
            "clusterIP": "None",  # headless: pod I of the job is NAME-I.NAME
            "publishNotReadyAddresses": True,
            "selector": {"app": job.name},
            "ports": [{"port": PORT}],
        },
    }
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": shape.size,
        "parallelism": shape.size,
        "backoffLimit": job.restarts * shape.size or RETRIES,
    }
    if shape.servers:  # the other tasks serve until ended; requires Kubernetes 1.31 or newer
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    spec["template"] = {
        "metadata": {"labels": {"app": job.name}},
        "spec": _pod(job, shape, command),
    }
    indexed = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name},
        "spec": spec,
    }
    return KUBERNETES.format(name=job.name) + yaml_text(service, indexed).rstrip("\n")


class _Dumper(yaml.SafeDumper):
    """A dumper that writes multi-line strings as blocks."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if PLAIN.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(*documents: Any) -> str:
    """Return the documents as YAML, separated by `---`, with keys in their order."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _pod(job: LaunchArguments, shape: Shape, command: Sequence[str]) -> dict[str, Any]:
    names = [f"{job.name}-{number}.{job.name}:{PORT}" for number in range(shape.size)]
    cluster = json.dumps(shape.tasks(names)[0].cluster)
    shell = task_shell(shape, "$JOB_COMPLETION_INDEX", f"'{cluster}'")
    claim, _, folder = job.volume.partition(":")
    container: dict[str, Any] = {
        "name": job.name,
        "image": job.image,
        "ports": [{"containerPort": PORT}],
        "command": ["/bin/sh", "-c", _unexpanded(shell) + "\n", job.name]
        + [_unexpanded(word) for word in command],
    }
    if job.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": job.gpus}}
    container["volumeMounts"] = [{"name": "storage", "mountPath": folder}]
    return {
        "subdomain": job.name,
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": job.grace,
        "containers": [container],
        "volumes": [{"name": "storage", "persistentVolumeClaim": {"claimName": claim}}],
    }


def slurm(job: LaunchArguments, shape: Shape, command: Sequence[str]) -> str:
    """Return a file for `sbatch` with one process per node."""
    minutes = math.ceil(60 * job.hours)
    number = "$SLURM_PROCID" if not shape.servers else "$((SLURM_PROCID + FIRST))"
    shell = task_shell(shape, number, "$CLUSTER")
    kinds = " ".join(f"{kind}:{count}" for kind, count in shape.counts.items())
    steps = STEP_OF_ALL if not shape.servers else STEPS_AROUND_A_CHIEF
    return SLURM.format(
        name=job.name,
        size=shape.size,
        time=f"{minutes // 60:02d}:{minutes % 60:02d}:00",
        grace=job.grace,
        warning=2 * job.grace,
        gpus="" if not job.gpus else f"#SBATCH --gpus-per-node={job.gpus}\n",
        first_port=FIRST_PORT,
        ports=PORTS,
        kinds=kinds,
        shell=shlex.quote(shell),
        command=shlex.join(command),
        steps=steps.format(grace=job.grace, others=shape.size - 1),
    )


def _unexpanded(text: str) -> str:
    """Return the text with `$(` escaped, which Kubernetes would expand before the shell does."""
    return text.replace("$(", "$$(")


KUBERNETES = """\
# kubectl apply -f FILE; kubectl logs -f --prefix -l app={name}; kubectl delete -f FILE
# A preempted pod is replaced, the other pods restart, and all resume from the newest checkpoint:
# data and run directory must be in the volume, which every pod must mount.
"""

SLURM = """\
#!/bin/bash
# sbatch FILE. SIGUSR1 arrives {warning} s before the time limit: the tasks save, then the job is
# requeued and resumes from the newest checkpoint, as it does when preempted or when a node fails.
# A cancelled job (SIGTERM) saves and is not requeued.
#SBATCH --job-name={name}
#SBATCH --output={name}-%j.log
#SBATCH --open-mode=append
#SBATCH --nodes={size}
#SBATCH --ntasks-per-node=1
#SBATCH --time={time}
#SBATCH --signal=B:USR1@{warning}
#SBATCH --requeue
{gpus}
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$(({first_port} + SLURM_JOB_ID % {ports}))
CLUSTER= first=0
for kind in {kinds}; do
    addresses=
    for host in "${{hosts[@]:first:${{kind#*:}}}}"; do
        addresses+="${{addresses:+, }}\\"$host:$port\\""
    done
    CLUSTER+="${{CLUSTER:+, }}\\"${{kind%:*}}\\": [$addresses]"
    first=$((first + ${{kind#*:}}))
done
export CLUSTER="{{$CLUSTER}}"
task={shell}
command=({command})

{steps}
requeue=
trap 'kill -TERM "$step"' TERM
trap 'requeue=1; kill -TERM "$step"' USR1
wait "$step"
status=$?
while kill -0 "$step" 2>/dev/null; do  # the signal interrupted the wait, not the step
    wait "$step"
    status=$?
done
if [ "$status" -eq 143 ] && [ -n "$requeue" ]; then  # saved because of the time limit
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status\""""

STEP_OF_ALL = """\
srun --label --kill-on-bad-exit=0 --wait={grace} bash -c "$task" task "${{command[@]}}" &
step=$!"""

STEPS_AROUND_A_CHIEF = """\
FIRST=1 srun --label --kill-on-bad-exit=0 --wait=0 --nodes={others} --ntasks={others} \\
    --relative=1 bash -c "$task" task "${{command[@]}}" &  # ends with the job
FIRST=0 srun --label --nodes=1 --ntasks=1 --relative=0 bash -c "$task" task "${{command[@]}}" &
step=$!"""
