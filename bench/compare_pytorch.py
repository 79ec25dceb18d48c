#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares training speed and memory of Vitrine and PyTorch on the same CPU cores or the same GPU, and all-reduce with Open MPI's: alternately, so
that both sides see the same noise. Prints medians over the rounds, the ratio to the fastest of PyTorch's ways with its spread, and bytes at the peak.

Sides. On the CPU: PyTorch eager, once with defaults ("eager") and once with malloc set to keep its memory and to use huge pages ("tuned"); with
--compile also torch.compile, tuned likewise. On a GPU: eager, eager with a fused optimizer and cuDNN's search for the fastest algorithms ("tuned"), the
whole step as one CUDA graph ("cuda-graph"), torch.compile, and torch.compile with mode="reduce-overhead" (its own CUDA graphs), all tuned likewise;
Vitrine trains with --autotune there. On the CPU each runs in its own process; on a GPU one process of PyTorch measures one after the other. The contiguous and the channels_last layout are measured (--compiled-layouts), and the faster counts.
On a GPU the compiled sides of all jobs come last, because torch.compile takes long; what it compiled is kept in build/torch_compiled for the next call.

What is timed. PyTorch: a step at a time on the CPU, the median; all steps of an epoch between two CUDA events on a GPU. Vitrine: an epoch after a whole
epoch of warm-up, with tracing off. On the CPU, PyTorch's inputs are ready f32 images, while Vitrine loads, resizes and normalizes u8 images as part of
the step. On a GPU both sides keep a data set of u8 images of 32x32 on the GPU, and a step includes their way from there: gathering by a permutation's
indices, conversion, normalization, and bilinear resizing where the model's size differs, in the model's layout and dtype. PyTorch keeps permutation and
labels on the GPU as well, and compiles all of it in the compiled sides; Vitrine (--data-on-device on) sends indices and labels from the host. Whether
Vitrine's steps ran as CUDA graphs is printed and in the JSON (`cuda_graphs`).

Jobs whose names end in -bf16, -fp16 or -tf32 run in that precision on both sides (autocast, fp16 with GradScaler); see --precision. Threads fit the
cores. The counterpart of several devices is DistributedDataParallel on Gloo, a process for each device; in the jobs whose names end in -mpi, Vitrine
also runs a process for each device, started by mpirun.

Memory is the peak of one device, in a separate run. For PyTorch on the CPU it is what its allocator gave according to the memory profile, from before
the creation of the model to the end of three steps: parameters, gradients, optimizer state, inputs, activations and temporary tensors, without
oneDNN's own allocations; on a GPU it is torch.cuda.max_memory_allocated(), without the reserve of the caching allocator. For Vitrine it is all memory
that it takes from the device, including staging, library workspace and gaps between blocks, and on the CPU again with --update-in-backward --bucket-mb 1. A data
set on the GPU is not counted on either side. vgg16-b32 and resnet18-b128 are not timed; with --memory nothing is.

The JSON file is written after every side of every job. A side that fails is named, and the others run; exit status 1. With --seconds, what there was no
time for is named, too (`not_reached`), and is no failure.

PyTorch is that of the Python that runs this script, else Debian's python3-torch; torchvision is not needed. The table of all-reduce needs
python3-mpi4py, --plot needs python3-matplotlib.
"""
import argparse
import datetime
import json
import os
import platform
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
TRAIN_PYTORCH = os.path.join(ROOT, "bench", "train_pytorch.py")

ALEXNET = {"model": "alexnet", "size": 227, "optimizer": "adamw"}
SMALL_CNN = {"model": "small-cnn", "size": 32, "optimizer": "adam"}
COMPILED = ("compile", "reduce-overhead")
LAYOUTS = ("contiguous", "channels_last")
LEAST_SECONDS = 3  # below, no further side begins
TUNED = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
UPDATE_IN_BACKWARD = ["--update-in-backward", "--bucket-mb", "1"]
ALL_REDUCE_BYTES = [64 << 10, 1 << 20, 16 << 20, 256 << 20]


def cpu_jobs():
    """{name: job}: threads are those of each device, and fit the cores."""
    cores = len(os.sched_getaffinity(0))
    devices = min(4, max(2, cores))
    one = {"devices": 1, "threads": cores}
    several = {"devices": devices, "threads": max(1, cores // devices)}
    jobs = {
        "alexnet-b64": {**ALEXNET, **one, "batch": 64, "steps": 8},
        "small-cnn-b128": {**SMALL_CNN, **one, "batch": 128, "steps": 100},
        f"alexnet-{devices}x32": {**ALEXNET, **several, "batch": 32 * devices, "steps": 8},
        f"alexnet-{devices}x32-mpi": {**ALEXNET, **several, "batch": 32 * devices, "steps": 8, "mpi": True},
        "resnet18-b16": {"model": "resnet18", "size": 224, "optimizer": "adamw", **one, "batch": 16, "steps": 6},
        "vgg16-b4": {"model": "vgg16", "size": 224, "optimizer": "adamw", **one, "batch": 4, "steps": 6},
        "vgg16-b32": {"model": "vgg16", "size": 224, "optimizer": "adamw", **one, "batch": 32, "memory_only": True},
        "resnet18-b128": {"model": "resnet18", "size": 32, "optimizer": "adamw", **one, "batch": 128, "memory_only": True},
    }
    return in_precisions(jobs, ["bf16"])


def gpu_jobs():
    one = {"device": "cuda", "resident": True, "devices": 1, "threads": 4}
    jobs = {
        "alexnet-b512": {**ALEXNET, **one, "batch": 512, "steps": 100},
        "alexnet-b64": {**ALEXNET, **one, "batch": 64, "steps": 200},
        "small-cnn-b128": {**SMALL_CNN, **one, "batch": 128, "steps": 1000},
    }
    return in_precisions(jobs, ["tf32", "fp16", "bf16"])


def in_precisions(jobs, precisions):
    """The jobs, each followed by itself in the other precisions; memory is compared in f32."""
    every = {}
    for name, job in jobs.items():
        every[name] = {**job, "precision": "f32"}
        if "memory_only" not in job:
            every.update({f"{name}-{precision}": {**job, "precision": precision} for precision in precisions})
    return every


def sides_of(arguments):
    if arguments.device == "cuda":
        return ["eager", "tuned", "cuda-graph", "compile", "reduce-overhead"]
    return ["eager", "tuned"] + ["compile"] * arguments.compile


class Failed(Exception):
    """A side failed; the others are worth measuring."""


class NotReached(Exception):
    """There is no time left."""


class Clock:
    def __init__(self, seconds):
        self.end = None if seconds is None else time.monotonic() + seconds

    def left(self):
        """Seconds, or None without a limit."""
        if self.end is None:
            return None
        left = self.end - time.monotonic()
        if left < LEAST_SECONDS:
            raise NotReached
        return left


# PyTorch's side: train_pytorch.py, in processes of its own.


class TorchProcess:
    """One process that measures one thing after another, so that PyTorch and the GPU start once."""

    def __init__(self, python, script):
        self.python, self.script = python, script
        self.process = None

    def ask(self, request, seconds):
        if self.process is None:
            environment = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(ROOT, "build", "torch_compiled"), **os.environ}
            self.process = subprocess.Popen([self.python, self.script, "--serve"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            pass  # it ended, see below
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            self.stop()
            raise NotReached
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            self.stop()
            raise Failed(f"PyTorch's process ended with {status}")
        answer = json.loads(line)
        if "error" in answer:
            self.stop()  # an error of CUDA makes a process useless
            raise Failed(answer["error"])
        return answer

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None


def run_torch_children(python, job, flags, side, seconds):
    """What each of its processes printed."""
    tuned = TUNED if side != "eager" else {}
    environment = {**os.environ, "OMP_NUM_THREADS": str(job["threads"]), **tuned}
    end = None if seconds is None else time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = os.path.join(folder, "rendezvous")
        command = [python, TRAIN_PYTORCH, "--job", json.dumps(job), "--rendezvous", rendezvous, "--side", side, *flags, "--rank"]
        children = [subprocess.Popen(command + [str(rank)], env=environment, stdout=subprocess.PIPE, text=True) for rank in range(job["devices"])]
        try:
            outputs = [child.communicate(timeout=None if end is None else max(0.0, end - time.monotonic()))[0] for child in children]
        except subprocess.TimeoutExpired as problem:
            raise NotReached from problem
        finally:
            for child in children:
                child.kill()
                child.wait()
    if any(child.returncode != 0 for child in children):
        raise Failed(f"PyTorch ended with {next(child.returncode for child in children if child.returncode != 0)}, see above")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def ask_torch(torch, job, side, layouts, memory, seconds):
    """{layout: figure}, that of the slowest or largest process."""
    key = "bytes" if memory else "seconds"
    if job.get("device") == "cuda":
        return torch.ask({"job": job, "side": side, "layouts": layouts, "memory": memory}, seconds)[key]
    answers = run_torch_children(torch.python, job, ["--memory"] * memory, side, seconds)
    return {layout: max(answer[key][layout] for answer in answers) for layout in answers[0][key]}


def peak_torch(torch, job, seconds):
    """Bytes at the peak of one process, in the layout that needs less."""
    return min(ask_torch(torch, job, "eager", LAYOUTS, True, seconds).values())


def run_torch(torch, job, side, layouts, seconds):
    """Samples per second in the faster layout, and its name."""
    measured = ask_torch(torch, job, side, layouts, False, seconds)
    layout = min(measured, key=measured.get)
    return job["batch"] / measured[layout], layout


# Vitrine's side.


def vitrine_command(program, subcommand, job):
    command = [program, subcommand, "--model", job["model"], "--image-size", str(job["size"]), "--batch-size", str(job["batch"]), "--optimizer", job["optimizer"],
               "--no-eval", "--json"]
    if job["precision"] in ("bf16", "fp16"):
        command += ["--precision", job["precision"]]
    if job.get("device") == "cuda":
        return command + ["--devices", "cuda:0", "--data-on-device", "on"] + ["--tf32"] * (job["precision"] == "tf32")
    command += ["--winograd"] * job.get("winograd", False)
    several = job["devices"] > 1 and "mpi" not in job
    command += ["--devices", f"cpu:0-{job['devices'] - 1}" if several else "cpu:0", "--threads-per-device", str(job["threads"])]
    return ["mpirun", "--bind-to", "none", "--oversubscribe", "--allow-run-as-root", "-np", str(job["devices"]), *command] if "mpi" in job else command


def run_json(command, seconds=None):
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as problem:
        raise NotReached from problem
    if run.returncode != 0:
        raise Failed(f"failed with {run.returncode}: {' '.join(command)}")
    return json.loads(run.stdout)


def run_vitrine(program, job, seconds):
    """Samples per second over the second of two epochs, bytes of one device at its peak, and what ran as CUDA graphs (None on the CPU)."""
    command = vitrine_command(program, "train", job) + ["--autotune"] * (job.get("device") == "cuda")
    result = run_json(command + ["--data", f"synthetic:{job['batch'] * job['steps']}", "--lr", "1e-4", "--epochs", "2", "--trace-level", "off"], seconds)
    peak = max(device["peak_bytes"] - device["peak_bytes_by_category"]["dataset"] for device in result["devices"])
    return result["epochs"][1]["samples_per_second"], peak, result["cuda_graphs"] if job.get("device") == "cuda" else None


def peak_vitrine(program, job, seconds, flags=()):
    """Bytes of one device at its peak, by the plan, which is what a run takes."""
    result = run_json([*vitrine_command(program, "plan", job), *flags], seconds)
    return max(device["planned_peak_bytes"] for device in result["devices"])


# The comparison.


def clocks():
    """What nvidia-smi says of the GPU's clocks, so that a throttled run is recognized."""
    try:
        run = subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw", "--format=csv,noheader"], stdout=subprocess.PIPE, text=True,
                             check=False)
    except FileNotFoundError:
        return None
    return run.stdout.splitlines()[0] if run.returncode == 0 and run.stdout else None


def tasks_of(jobs, arguments):
    """(job, round, side) in the order in which they are measured; a side is one of PyTorch, "vitrine" or "memory"."""
    sides = sides_of(arguments)
    on_gpu = arguments.device == "cuda"
    passes = [[side for side in sides if side not in COMPILED] + ["vitrine"], [side for side in sides if side in COMPILED]] if on_gpu else [[*sides, "vitrine"]]
    tasks = []
    for number, measured in enumerate(passes):
        for name, job in jobs.items():
            if "memory_only" not in job and not arguments.memory:
                tasks += [(name, round_number, side) for round_number in range(arguments.rounds) for side in measured]
            if number == 0 and job["precision"] == "f32" and "mpi" not in job:
                tasks.append((name, 0, "memory"))
    return tasks


def measure(result, side, torch, arguments, clock):
    """Adds the figures of one side to a job's result."""
    job = result["job"]
    if side == "memory":
        peaks = {"pytorch": peak_torch(torch, job, clock.left())}
        planned = arguments.memory or "memory_only" in job
        peaks["vitrine"] = peak_vitrine(arguments.vitrine, job, clock.left()) if planned else result.get("vitrine_peak_bytes")
        if peaks["vitrine"] is None:
            raise Failed("Vitrine's peak was not measured")
        if job.get("device") != "cuda":
            peaks["vitrine, update in backward"] = peak_vitrine(arguments.vitrine, job, clock.left(), UPDATE_IN_BACKWARD)
        result["peak_bytes"], result["peak_ratio"] = peaks, peaks["vitrine"] / peaks["pytorch"]
    elif side == "vitrine":
        speed, result["vitrine_peak_bytes"], graphs = run_vitrine(arguments.vitrine, job, clock.left())
        result["rounds"]["vitrine"].append(speed)
        if job.get("device") == "cuda":
            result.setdefault("clocks", []).append(clocks())
            result["cuda_graphs"] = {**graphs, "on": graphs["launched"] >= job["steps"]}
    else:
        layouts = [layout for layout in LAYOUTS if side not in COMPILED or arguments.compiled_layouts in (layout, "both")]
        speed, result["layouts"][side] = run_torch(torch, job, side, layouts, clock.left())
        result["rounds"][side].append(speed)


def summarize(result):
    """Medians and ratios of what was measured so far; a ratio is that of a round in which Vitrine and any side of PyTorch have a figure."""
    rounds = result["rounds"]
    known = {side: [value for value in values if value is not None] for side, values in rounds.items()}
    result["samples_per_second"] = {side: statistics.median(values) for side, values in known.items() if values}
    ratios = []
    for number, own in enumerate(rounds["vitrine"]):
        others = [values[number] for side, values in rounds.items() if side != "vitrine" and number < len(values) and values[number] is not None]
        if own is not None and others:
            ratios.append(own / max(others))
    if ratios:
        result["ratios"], result["ratio"] = ratios, statistics.median(ratios)


def graphs_text(graphs):
    issued = sum(value for key, value in graphs.items() if key.startswith("issued"))
    return f"{graphs['state']}; {graphs['launched']} micro-batches launched as graphs, {issued} issued"


def compare(jobs, torch, arguments, report, clock):
    """Measures every task; `report` is complete after each."""
    sides = sides_of(arguments)
    report["results"] = {name: {"job": job, "rounds": {side: [] for side in [*sides, "vitrine"]}, "layouts": {}} for name, job in jobs.items()}
    tasks = tasks_of(jobs, arguments)
    report["not_reached"] = [task_text(task, arguments) for task in tasks]
    write_report(report, arguments)
    for task in tasks:
        name, _, side = task
        result = report["results"][name]
        print(task_text(task, arguments), file=sys.stderr, flush=True)
        try:
            measure(result, side, torch, arguments, clock)
            if side == "vitrine" and not result.get("cuda_graphs", {"on": True})["on"]:
                print(f"compare_pytorch: WARNING: {name}: Vitrine's steps did not run as CUDA graphs ({graphs_text(result['cuda_graphs'])})", file=sys.stderr)
        except NotReached:
            break
        except Failed as problem:
            print(f"compare_pytorch: {name}: {side}: {problem}", file=sys.stderr)
            result.setdefault("failed", {})[side] = str(problem)
            if side != "memory":
                result["rounds"][side].append(None)
        report["not_reached"].pop(0)
        summarize(result)
        write_report(report, arguments)


def task_text(task, arguments):
    name, number, side = task
    return f"{name}: {side}" + (f", round {number + 1} of {arguments.rounds}" if arguments.rounds > 1 and side != "memory" else "")


def all_reduce_child():
    """One rank of Open MPI's all-reduce: prints {bytes: microseconds}, the median of in-place sums of f32."""
    import numpy
    from mpi4py import MPI
    medians = {}
    for size in ALL_REDUCE_BYTES:
        buffer = numpy.zeros(size // 4, dtype=numpy.float32)
        times = []
        for iteration in range(25 if size < (64 << 20) else 8):
            MPI.COMM_WORLD.Barrier()
            begin = time.perf_counter()
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, buffer, op=MPI.SUM)
            if iteration >= 3:
                times.append((time.perf_counter() - begin) * 1e6)
        medians[size] = statistics.median(times)
    if MPI.COMM_WORLD.Get_rank() == 0:
        print(json.dumps(medians))


def compare_all_reduce(python, arguments):
    """{bytes: {way: microseconds}} of two ranks, in place, f32: medians over the rounds of each round's median."""
    mpirun = ["mpirun", "--bind-to", "none", "--oversubscribe", "--allow-run-as-root", "-np", "2"]
    measured = {str(size): {} for size in ALL_REDUCE_BYTES}
    own = [arguments.vitrine, "collectives", "all_reduce", "--json", "--threads-per-device", "1", "-c", "0"]
    sizes = ["-b", str(ALL_REDUCE_BYTES[0]), "-e", str(ALL_REDUCE_BYTES[-1]), "-f", "16"]
    for number in range(arguments.rounds):
        print(f"all-reduce: round {number + 1} of {arguments.rounds}", file=sys.stderr)
        answer = json.loads(subprocess.run([*mpirun, python, os.path.abspath(__file__), "--all-reduce-child"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])
        for size, microseconds in answer.items():
            measured[size].setdefault("Open MPI", []).append(microseconds)
        for way, command in (("one process", [*own, *sizes, "--devices", "cpu:0-1"]), ("two processes", [*mpirun, *own, *sizes, "--devices", "cpu:0"])):
            for row in run_json(command)["results"]:
                measured.setdefault(str(row["size"]), {}).setdefault(way, []).append(row["in_place"]["median_us"])
    return {size: {way: statistics.median(values) for way, values in ways.items()} for size, ways in measured.items()}


def facts_of(torch, arguments, clock):
    """What the figures hold for: machine, versions and date."""
    facts = torch.ask({"facts": True}, clock.left())
    if arguments.device == "cuda" and facts["gpu"] is None:
        sys.exit(f"compare_pytorch: PyTorch {facts['version']} sees no GPU")
    found = re.search(r"(?:MKL-DNN|oneDNN|mkldnn) v?([0-9.]+)", facts["config"])
    info = run_json([arguments.vitrine, "info", "--json"])
    return {"date": datetime.date.today().isoformat(), "processor": info.get("processor") or platform.processor(), "cores": len(os.sched_getaffinity(0)),
            "gpu": facts["gpu"] if arguments.device == "cuda" else None, "pytorch": facts["version"], "pytorch_onednn": found[1] if found else None,
            "pytorch_cudnn": facts["cudnn"] if arguments.device == "cuda" else None,
            "vitrine": info["version"], "libraries": info["libraries"], "instruction_set": info.get("cpu_operations"), "rounds": arguments.rounds}


def spread(values):
    return f"{min(values):.2f}-{max(values):.2f}"


def print_tables(report):
    facts, results = report["facts"], report["results"]
    where = facts["gpu"] or f"{facts['cores']} cores of {facts['processor']}"
    onednn = f" (oneDNN {facts['pytorch_onednn']})" if facts["pytorch_onednn"] else ""
    rounds = f"medians of {facts['rounds']} rounds" if facts["rounds"] > 1 else "one round"
    print(f"{where}, {facts['date']}; Vitrine {facts['vitrine']} (oneDNN {facts['libraries'].get('oneDNN', 'none')}), PyTorch {facts['pytorch']}{onednn}; {rounds}")
    timed = {name: result for name, result in results.items() if result.get("samples_per_second")}
    if timed:
        sides = list(next(iter(timed.values()))["rounds"])
        print(f"\n{'samples/s':24}" + "".join(f"{side:>17}" for side in sides) + f"{'/ best PyTorch':>16}{'from-to':>12}")
        for name, result in timed.items():
            speeds = result["samples_per_second"]
            ratio = f"{result['ratio']:16.2f}{spread(result['ratios']):>12}" if "ratio" in result else ""
            print(f"{name:24}" + "".join(f"{speeds[side]:17.1f}" if side in speeds else f"{'-':>17}" for side in sides) + ratio)
            if "cuda_graphs" in result:
                print(f"  {'' if result['cuda_graphs']['on'] else 'WARNING: no '}CUDA graphs: {graphs_text(result['cuda_graphs'])}")
            for line in result.get("clocks", []):
                print(f"  clocks: {line}")
    sized = {name: result for name, result in results.items() if "peak_bytes" in result}
    if sized:
        print(f"\n{'MB at the peak':24}{'PyTorch':>17}{'vitrine':>17}{'/ PyTorch':>12}{'updating in backward':>23}{'/ PyTorch':>12}")
        for name, result in sized.items():
            torch_peak, peak, *updating = result["peak_bytes"].values()
            more = "".join(f"{bytes_ / 1e6:23.1f}{bytes_ / torch_peak:12.3f}" for bytes_ in updating)
            print(f"{name:24}{torch_peak / 1e6:17.1f}{peak / 1e6:17.1f}{result['peak_ratio']:12.3f}{more}")
    if report.get("all_reduce"):
        print(f"\n{'all-reduce, 2 ranks, us':24}{'Open MPI':>17}{'one process':>17}{'two processes':>17}")
        for size, ways in report["all_reduce"].items():
            print(f"{int(size) >> 10:>20} KiB" + "".join(f"{ways[way]:17.1f}" for way in ("Open MPI", "one process", "two processes")))
    for name, result in results.items():
        for side, problem in result.get("failed", {}).items():
            print(f"failed: {name}: {side}: {problem}")
    if report.get("not_reached"):
        print("not reached: " + "; ".join(report["not_reached"]))


def plot(report, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    timed = {name: result for name, result in report["results"].items() if "ratio" in result}
    figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(timed) + 1.6))
    for row, result in enumerate(timed.values()):
        axes.barh(row, result["ratio"], color="#0072b2")
        axes.plot([min(result["ratios"]), max(result["ratios"])], [row, row], color="black", linewidth=2)
    axes.axvline(1, color="gray", linestyle="--")
    axes.set_yticks(range(len(timed)), list(timed))
    axes.invert_yaxis()
    axes.set_xlabel(f"speed of Vitrine / fastest way of PyTorch {report['facts']['pytorch']} (median, and from the least to the most of the rounds)")
    figure.tight_layout()
    figure.savefig(path)


def has_module(python, module):
    """Without loading it, which takes seconds."""
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
    try:
        return subprocess.run([python, "-c", find], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


def find_python():
    for python in (sys.executable, "/usr/bin/python3"):
        if has_module(python, "torch"):
            return python
    return sys.exit("compare_pytorch: no PyTorch here. Install it with: apt-get install python3-torch")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vitrine", default=os.path.join(ROOT, "build", "release", "bin", "vitrine"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", help=f"some of {', '.join(cpu_jobs())}; on a GPU of {', '.join(gpu_jobs())}")
    parser.add_argument("--precision", help="only the jobs in these: f32,bf16; on a GPU also tf32,fp16")
    parser.add_argument("--winograd", action="store_true", help="Vitrine's side with --winograd; only the jobs in f32 on the CPU")
    parser.add_argument("--memory", action="store_true", help="compare memory only, and time nothing")
    parser.add_argument("--compile", action="store_true", help="torch.compile on the CPU too")
    parser.add_argument("--compiled-layouts", choices=[*LAYOUTS, "both"], default="both", help="of torch.compile, which takes long")
    parser.add_argument("--seconds", type=float, help="time for everything; what does not fit is named")
    parser.add_argument("--no-all-reduce", action="store_true", help="leave out the table of all-reduce")
    parser.add_argument("--json", metavar="FILE", help="what was measured, after each side")
    parser.add_argument("--plot", metavar="FILE", help="the ratios as a picture: .svg, .png, .pdf")
    parser.add_argument("--rehearse", metavar="SCRIPT", help=argparse.SUPPRESS)  # tiny jobs, and SCRIPT is PyTorch's side
    parser.add_argument("--all-reduce-child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.all_reduce_child:
        return all_reduce_child()
    jobs = gpu_jobs() if arguments.device == "cuda" else cpu_jobs()
    if arguments.rehearse:
        jobs = {name: {**job, "model": "lenet5", "size": 12, "batch": 4, "steps": 8} for name, job in jobs.items()}
    if (arguments.winograd or arguments.memory) and arguments.device == "cuda":
        parser.error("--winograd and --memory are for the CPU")
    if arguments.winograd:
        jobs = {name: {**job, "winograd": True} for name, job in jobs.items() if job["precision"] == "f32"}
    names = arguments.jobs.split(",") if arguments.jobs else list(jobs)
    unknown = [name for name in names if name not in jobs]
    if unknown:
        parser.error(f"unknown job {unknown[0]}: there are {', '.join(jobs)}")
    precisions = arguments.precision.split(",") if arguments.precision else sorted({job["precision"] for job in jobs.values()})
    wrong = [precision for precision in precisions if precision not in {job["precision"] for job in jobs.values()}]
    if wrong:
        parser.error(f"--precision {wrong[0]}: there are {', '.join(sorted({job['precision'] for job in jobs.values()}))}")
    if arguments.rounds < 1:
        parser.error(f"--rounds: expected a positive number, got {arguments.rounds}")
    if not os.access(arguments.vitrine, os.X_OK):
        parser.error(f"{arguments.vitrine} does not exist; build it, or pass its path with --vitrine")
    if arguments.plot and not has_module(sys.executable, "matplotlib"):
        parser.error("--plot: matplotlib is missing; install it with: apt-get install python3-matplotlib")
    clock = Clock(arguments.seconds)
    torch = TorchProcess(sys.executable, arguments.rehearse) if arguments.rehearse else TorchProcess(find_python(), TRAIN_PYTORCH)
    report = {"results": {}}
    try:
        report["facts"] = facts_of(torch, arguments, clock)
        if arguments.device == "cpu":
            torch.stop()
        compare({name: jobs[name] for name in names if jobs[name]["precision"] in precisions}, torch, arguments, report, clock)
        if arguments.device == "cpu" and not arguments.no_all_reduce and not arguments.jobs:
            mpi_python = next((p for p in (torch.python, "/usr/bin/python3") if has_module(p, "mpi4py")), None)
            if mpi_python is None:
                print("compare_pytorch: all-reduce is not compared: install python3-mpi4py", file=sys.stderr)
            else:
                report["all_reduce"] = compare_all_reduce(mpi_python, arguments)
                write_report(report, arguments)
    except Failed as problem:
        sys.exit(f"compare_pytorch: {problem}")
    except NotReached:
        sys.exit(f"compare_pytorch: --seconds {arguments.seconds:.0f} is too short to start PyTorch")
    finally:
        torch.stop()
    print_tables(report)
    if arguments.plot:
        plot(report, arguments.plot)
    return 1 if any("failed" in result for result in report["results"].values()) else 0


def write_report(report, arguments):
    """After each side: what was measured is kept if a later one does not end."""
    if not arguments.json:
        return
    with open(arguments.json + ".part", "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
        file.write("\n")
    os.replace(arguments.json + ".part", arguments.json)


if __name__ == "__main__":
    sys.exit(main())
