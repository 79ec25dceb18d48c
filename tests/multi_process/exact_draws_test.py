#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Drawn runs in exact mode: one hash for each identity (model, precision, batch, leaves, workspace), whatever the devices, processes, scheme, split and
capacities are, and whether it evaluates; and each device of each process measures what vitrine plan --processes has planned for it.

usage: exact_draws_test.py VITRINE MPIRUN [SECONDS [SEED]]      SECONDS: how long to draw (default 30)
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

VITRINE, MPIRUN = sys.argv[1:3]
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 30
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else 46
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_", "SLURM_"))},
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_WAIT_POLICY": "passive",
}
VARIANTS = 4
# Image sizes at which an epoch takes well below a second.
MODELS = {"mlp": (8, 40), "lenet5": (12, 32), "small-cnn": (8, 40), "resnet18-cifar": (8, 16), "alexnet": (63, 75)}
NORMALIZED = ("resnet18-cifar",)


def run(processes, arguments):
    """(exit code, JSON or None, what stderr says)"""
    # Open MPI 5 mixes long output on stdout and stderr under load: each rank's stdout goes to a file.
    with tempfile.TemporaryDirectory() as folder:
        to_file = ["sh", "-c", 'exec "$0" "$@" >"$OUT.${OMPI_COMM_WORLD_RANK:-0}"']
        launcher = [MPIRUN, "--oversubscribe", "--bind-to", "none", "-np", str(processes)] if processes > 1 else []
        done = subprocess.run([*launcher, *to_file, VITRINE, *arguments, "--json"], capture_output=True, text=True, timeout=600,
                              env=ENVIRONMENT | {"OUT": f"{folder}/out"})
        output = pathlib.Path(f"{folder}/out.0")
        text = output.read_text() if output.exists() else ""
    try:
        return done.returncode, json.loads(text), done.stderr
    except json.JSONDecodeError:
        return done.returncode, None, done.stderr


class Identity:
    """What determines the bits of a run."""

    def __init__(self, draw):
        self.model = draw.choices(list(MODELS), (4, 3, 5, 2, 1))[0]
        self.leaves = draw.randint(1, 9)
        batch = draw.randint(max(2, self.leaves), 40 if self.model != "alexnet" else 12)
        samples = batch * draw.randint(1, 2) + draw.randint(0, batch - 1)
        precision = draw.choice(("fp32", "fp16", "bf16"))
        size = draw.randint(*MODELS[self.model])
        threads = draw.choice((1, 1, 2))
        self.arguments = (f"--exact --model {self.model} --image-size {size} --precision {precision} --leaves {self.leaves} --batch-size {batch} "
                          f"--data synthetic:{samples} --steps {draw.randint(2, 3)} --leaf-threads {threads} --seed {draw.randint(0, 99)}").split()
        if draw.random() < 0.4:
            self.arguments += ["--workspace", str(int(2 ** draw.uniform(16, 26)))]


class Variant:
    """How a run is made."""

    def __init__(self, draw, identity):
        self.processes = draw.choices((1, 2, 3), (2, 2, 1))[0]
        devices = draw.randint(1, 3)
        modes = ["ddp", "ddp", "zero1", "zero2", "zero3"] + (["dp", "criterion"] if self.processes == 1 else [])
        self.arguments = ["--mode", draw.choice(modes), "--devices", "cpu:0" if devices == 1 else f"cpu:0-{devices - 1}"]
        if draw.random() < 0.5:
            self.arguments += ["--split", ",".join(str(draw.randint(1, 9)) for _ in range(self.processes * devices))]
        divisors = [a for a in (1, 2, 3) if a <= identity.leaves and identity.model not in NORMALIZED]
        self.arguments += ["--accumulate", str(draw.choice(divisors or [1]))]
        if draw.random() < 0.3:
            self.arguments += ["--no-eval"]
        if draw.random() < 0.3 and identity.model not in NORMALIZED:
            self.arguments += ["--recompute-segments", "sqrt"]
        self.tight = draw.random() < 0.4


def compare_with_plan(plan, trained):
    """What differs between the devices of a plan and of a run."""
    planned = {d["device"]: d for d in plan["devices"]}
    measured = {d["device"]: d for d in trained["devices"]}
    if planned.keys() != measured.keys():
        return [f"planned {sorted(planned)}, trained on {sorted(measured)}"]
    if plan["processes"] > 1:
        headroom = [(d["capacity_bytes"] or 0) - d["peak_bytes"] for d in plan["devices"]]
        if headroom != sorted(headroom):
            return [f"the fullest device is not the first: {headroom}"]
    return [
        f"{name}: planned {planned[name][key]}, measured {device[key]}" for name, device in measured.items()
        for key in ("peak_bytes", "peak_bytes_by_category") if planned[name][key] != device[key]
    ]


def check(draw, end, problems, counts):
    identity = Identity(draw)
    hashes = {}
    for number in range(VARIANTS):
        if number > 1 and time.monotonic() > end:
            break
        variant = Variant(draw, identity)
        arguments = [*identity.arguments, *variant.arguments]
        place = ["--processes", str(variant.processes)] if variant.processes > 1 else []
        status, plan, error = run(1, ["plan", *arguments, *place])
        # Capacities that fit to the byte, of all devices alike.
        if variant.tight and plan is not None:
            arguments += ["--device-memory", str(max(d["peak_bytes"] for d in plan["devices"]))]
            status, plan, error = run(1, ["plan", *arguments, *place])
        shown = f"mpirun -np {variant.processes} vitrine train {' '.join(arguments)}"
        trained_status, trained, trained_error = run(variant.processes, ["train", *arguments])
        counts["runs"] += 1
        if plan is None or trained is None:
            counts["refused"] += 1
            if status == 0 or trained_status == 0:
                problems.append(f"{shown}\n  plan ends with {status}, train with {trained_status}: {error or trained_error}")
            elif "workspace of at least" in error and "workspace of at least" not in trained_error:
                problems.append(f"{shown}\n  plan: {error}  train: {trained_error}")
            continue
        counts["tight"] += variant.tight
        counts["processes"] += variant.processes > 1
        problems.extend(f"{shown}\n  {problem}" for problem in compare_with_plan(plan, trained))
        hashes.setdefault(trained["state_hash"], shown)
    if len(hashes) > 1:
        problems.append("one identity, several hashes:" + "".join(f"\n  {value} {shown}" for value, shown in hashes.items()))


def main():
    draw = random.Random(SEED)
    problems, counts = [], {"identities": 0, "runs": 0, "refused": 0, "tight": 0, "processes": 0}
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        check(draw, end, problems, counts)
        counts["identities"] += 1
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    for problem in problems:
        print(problem)
    if counts["runs"] == counts["refused"]:
        print("no run was compared")
        return 1
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
