#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares training speed and memory of Vitrine and PyTorch on the same CPU cores or the same GPU, and all-reduce with Open MPI's: alternately, so
that both sides see the same noise. Prints medians over the rounds, the ratio to the fastest of PyTorch's ways with its spread, and bytes at the peak.

Sides. On the CPU: PyTorch eager, once with defaults ("eager") and once with malloc set to keep its memory and to use huge pages ("tuned"); with
--compile also torch.compile, tuned likewise. On a GPU: eager, eager with a fused optimizer and cuDNN's search for the fastest algorithms ("tuned"),
torch.compile, and torch.compile with mode="reduce-overhead" (CUDA graphs), both tuned likewise. Each runs in its own process, in the contiguous and
the channels_last layout, of which the faster counts.

What is timed. PyTorch: a step at a time on the CPU, the median; all steps between two CUDA events on a GPU. Vitrine: an epoch after a whole epoch of
warm-up, with tracing off. PyTorch's inputs are ready f32 images on the device; Vitrine loads, resizes and normalizes u8 images as part of the step.

Jobs whose names end in -bf16, -fp16 or -tf32 run in that precision on both sides (autocast, fp16 with GradScaler); see --precision. Threads fit the
cores. The counterpart of several devices is DistributedDataParallel on Gloo, a process for each device; in the jobs whose names end in -mpi, Vitrine
also runs a process for each device, started by mpirun.

Memory is the peak of one device, in a separate run. For PyTorch on the CPU it is what its allocator gave according to the memory profile, from before
the creation of the model to the end of three steps: parameters, gradients, optimizer state, inputs, activations and temporary tensors, without
oneDNN's own allocations; on a GPU it is torch.cuda.max_memory_allocated(), without the reserve of the caching allocator. For Vitrine it is all memory
that it takes from the device, including staging, library workspace and gaps between blocks. The jobs of --memory-only models are not timed.

PyTorch is that of the Python that runs this script, else Debian's python3-torch; torchvision is not needed. The table of all-reduce needs
python3-mpi4py, --plot needs python3-matplotlib.
"""
import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

ALEXNET = {"model": "alexnet", "size": 227, "optimizer": "adamw"}
SMALL_CNN = {"model": "small-cnn", "size": 32, "optimizer": "adam"}
WARM_UP = 3
TUNED = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
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
        "vgg16-b32": {"model": "vgg16", "size": 224, "optimizer": "adamw", **one, "batch": 32, "memory_only": True},
        "resnet18-b128": {"model": "resnet18", "size": 32, "optimizer": "adamw", **one, "batch": 128, "memory_only": True},
    }
    return in_precisions(jobs, ["bf16"])


def gpu_jobs():
    one = {"device": "cuda", "devices": 1, "threads": 4}
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
        return ["eager", "tuned", "compile", "reduce-overhead"]
    return ["eager", "tuned"] + ["compile"] * arguments.compile


# PyTorch's side, in processes of its own.


def make_torch_model(torch, name):
    nn = torch.nn
    if name == "small-cnn":
        features = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        return nn.Sequential(*features, nn.Flatten(), nn.Linear(64 * 8 * 8, 128), nn.ReLU(inplace=True), nn.Linear(128, 10))
    if name == "resnet18":
        return make_torch_resnet18(nn)
    if name == "vgg16":
        features, channels = [], 3
        for width in [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0]:
            features += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)] if width else [nn.MaxPool2d(2)]
            channels = width or channels
        classifier = [nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(),
                      nn.Linear(4096, 10)]
        return nn.Sequential(*features, nn.AdaptiveAvgPool2d((7, 7)), nn.Flatten(), *classifier)
    features = [nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
                nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
                nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True),
                nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True),
                nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d((6, 6))]
    classifier = [nn.Dropout(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(inplace=True),
                  nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 10)]
    return nn.Sequential(*features, nn.Flatten(), *classifier)


def make_torch_resnet18(nn):
    class Block(nn.Module):
        def __init__(self, channels, width, stride):
            super().__init__()
            self.branch = nn.Sequential(nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                                        nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width))
            shortcut = [nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)] if channels != width else []
            self.shortcut = nn.Sequential(*shortcut)
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            y = self.branch(x)
            y += self.shortcut(x)
            return self.relu(y)

    layers, channels = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
    for width in (64, 128, 256, 512):
        layers += [Block(channels, width, 1 if width == 64 else 2), Block(width, width, 1)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def make_training(torch, job, layout, side):
    """A function that does one training step."""
    device = job.get("device", "cpu")
    on_gpu, samples = device == "cuda", job["batch"] // job["devices"]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job["precision"] == "tf32"
    torch.backends.cudnn.benchmark = on_gpu and side != "eager"
    model = make_torch_model(torch, job["model"]).to(device=device, memory_format=layout)
    images = torch.randn(samples, 3, job["size"], job["size"], device=device).to(memory_format=layout)
    labels = torch.randint(0, 10, (samples,), device=device)
    optimizer_class = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[job["optimizer"]]
    optimizer = optimizer_class(model.parameters(), lr=1e-4, **({"fused": True} if on_gpu and side != "eager" else {}))
    trained = torch.nn.parallel.DistributedDataParallel(model) if job["devices"] > 1 else model
    if side == "compile":
        trained = torch.compile(trained)
    elif side == "reduce-overhead":
        trained = torch.compile(trained, mode="reduce-overhead")
    loss_function = torch.nn.CrossEntropyLoss()
    mixed = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(job["precision"])
    scaler = torch.cuda.amp.GradScaler(enabled=True) if job["precision"] == "fp16" else None

    def step():
        optimizer.zero_grad(set_to_none=True)
        if mixed is None:
            loss = loss_function(trained(images), labels)
        else:
            with torch.autocast(device, dtype=mixed):
                loss = loss_function(trained(images), labels)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return step


def peak_of_torch(torch, job, layout):
    """Bytes allocated at the peak of three training steps, the model and what it is trained with included."""
    def steps():
        step = make_training(torch, job, layout, "eager")
        for _ in range(3):
            step()

    if job.get("device") == "cuda":
        torch.cuda.reset_peak_memory_stats()
        steps()
        return torch.cuda.max_memory_allocated()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        steps()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def time_torch(torch, job, layout, side):
    """Seconds of a training step: the median on a CPU, the mean over all on a GPU, where the host runs ahead."""
    step = make_training(torch, job, layout, side)
    for _ in range(WARM_UP + 7 * (side in ("compile", "reduce-overhead"))):
        step()
    if job.get("device") == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(job["steps"]):
            step()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3 / job["steps"]
    times = []
    for _ in range(job["steps"]):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def torch_child(job, rank, rendezvous, side, memory):
    """Runs in the process that is measured; prints {layout: seconds of a step}, or {layout: bytes} of memory."""
    import torch
    torch.set_num_threads(job["threads"])
    torch.manual_seed(rank)
    if job["devices"] > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=job["devices"])
    layouts = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    if memory:
        print(json.dumps({"bytes": {name: peak_of_torch(torch, job, layout) for name, layout in layouts.items()}}))
    else:
        print(json.dumps({"seconds": {name: time_torch(torch, job, layout, side) for name, layout in layouts.items()}}))


def run_torch_children(python, job, flags, side):
    """What each of its processes printed."""
    tuned = TUNED if side != "eager" and job.get("device") != "cuda" else {}
    environment = {**os.environ, "OMP_NUM_THREADS": str(job["threads"]), **tuned}
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = os.path.join(folder, "rendezvous")
        command = [python, os.path.abspath(__file__), "--child", json.dumps(job), "--rendezvous", rendezvous, "--side", side, *flags, "--rank"]
        children = [subprocess.Popen(command + [str(rank)], env=environment, stdout=subprocess.PIPE, text=True) for rank in range(job["devices"])]
        outputs = [child.communicate()[0] for child in children]
    if any(child.returncode != 0 for child in children):
        sys.exit(f"compare_pytorch: PyTorch ({side}) failed on {job['model']}, see above")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def peak_torch(python, job):
    """Bytes at the peak of one process, in the layout that needs less."""
    answers = run_torch_children(python, job, ["--memory"], "eager")
    return min(max(a["bytes"][layout] for a in answers) for layout in answers[0]["bytes"])


def run_torch(python, job, side):
    """Samples per second in the faster layout, and its name."""
    answers = run_torch_children(python, job, [], side)
    slowest = {layout: max(a["seconds"][layout] for a in answers) for layout in answers[0]["seconds"]}
    layout = min(slowest, key=slowest.get)
    return job["batch"] / slowest[layout], layout


# Vitrine's side.


def vitrine_command(program, subcommand, job):
    command = [program, subcommand, "--model", job["model"], "--image-size", str(job["size"]), "--batch-size", str(job["batch"]), "--optimizer", job["optimizer"],
               "--no-eval", "--json"]
    if job["precision"] in ("bf16", "fp16"):
        command += ["--precision", job["precision"]]
    if job.get("device") == "cuda":
        return command + ["--devices", "cuda:0"] + ["--tf32"] * (job["precision"] == "tf32")
    several = job["devices"] > 1 and "mpi" not in job
    command += ["--devices", f"cpu:0-{job['devices'] - 1}" if several else "cpu:0", "--threads-per-device", str(job["threads"])]
    return ["mpirun", "--bind-to", "none", "--oversubscribe", "--allow-run-as-root", "-np", str(job["devices"]), *command] if "mpi" in job else command


def run_json(command):
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"compare_pytorch: failed with {run.returncode}: {' '.join(command)}")
    return json.loads(run.stdout)


def run_vitrine(program, job):
    """Samples per second over the second of two epochs, and bytes of one device at its peak."""
    command = vitrine_command(program, "train", job)
    result = run_json(command + ["--data", f"synthetic:{job['batch'] * job['steps']}", "--lr", "1e-4", "--epochs", "2", "--trace-level", "off"])
    return result["epochs"][1]["samples_per_second"], max(device["peak_bytes"] for device in result["devices"])


def peak_vitrine(program, job):
    """Bytes of one device at its peak, by the plan, which is what a run takes."""
    result = run_json(vitrine_command(program, "plan", job))
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


def measure(name, job, python, arguments):
    sides = sides_of(arguments)
    result = {"job": job, "rounds": {side: [] for side in [*sides, "vitrine"]}, "layouts": {}}
    if "memory_only" in job:
        peaks = {"pytorch": peak_torch(python, job), "vitrine": peak_vitrine(arguments.vitrine, job)}
    else:
        for number in range(arguments.rounds):
            print(f"{name}: round {number + 1} of {arguments.rounds}", file=sys.stderr)
            for side in sides:
                speed, result["layouts"][side] = run_torch(python, job, side)
                result["rounds"][side].append(speed)
            speed, peak = run_vitrine(arguments.vitrine, job)
            result["rounds"]["vitrine"].append(speed)
            if job.get("device") == "cuda":
                result.setdefault("clocks", []).append(clocks())
        result["samples_per_second"] = {side: statistics.median(values) for side, values in result["rounds"].items()}
        result["ratios"] = [speed / max(result["rounds"][side][number] for side in sides) for number, speed in enumerate(result["rounds"]["vitrine"])]
        result["ratio"] = statistics.median(result["ratios"])
        peaks = {"pytorch": peak_torch(python, job), "vitrine": peak} if job["precision"] == "f32" and "mpi" not in job else None
    if peaks:
        result["peak_bytes"] = peaks
        result["peak_ratio"] = peaks["vitrine"] / peaks["pytorch"]
    return result


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


def facts_of(python, arguments):
    """What the figures hold for: machine, versions and date."""
    script = "import json, torch; print(json.dumps({'version': torch.__version__, 'config': torch.__config__.show(), 'gpu': torch.cuda.get_device_name() if torch.cuda.is_available() else None}))"
    torch = json.loads(subprocess.run([python, "-c", script], stdout=subprocess.PIPE, text=True, check=True).stdout)
    found = re.search(r"(?:MKL-DNN|oneDNN|mkldnn) v?([0-9.]+)", torch["config"])
    info = run_json([arguments.vitrine, "info", "--json"])
    return {"date": datetime.date.today().isoformat(), "processor": info.get("processor") or platform.processor(), "cores": len(os.sched_getaffinity(0)),
            "gpu": torch["gpu"] if arguments.device == "cuda" else None, "pytorch": torch["version"], "pytorch_onednn": found[1] if found else None,
            "vitrine": info["version"], "libraries": info["libraries"], "instruction_set": info.get("instruction_set"), "rounds": arguments.rounds}


def spread(values):
    return f"{min(values):.2f}-{max(values):.2f}"


def print_tables(report):
    facts, results = report["facts"], report["results"]
    where = facts["gpu"] or f"{facts['cores']} cores of {facts['processor']}"
    onednn = f" (oneDNN {facts['pytorch_onednn']})" if facts["pytorch_onednn"] else ""
    print(f"{where}, {facts['date']}; Vitrine {facts['vitrine']} (oneDNN {facts['libraries'].get('oneDNN', 'none')}), PyTorch {facts['pytorch']}{onednn}; medians of {facts['rounds']} rounds")
    timed = {name: result for name, result in results.items() if "ratio" in result}
    if timed:
        sides = list(next(iter(timed.values()))["samples_per_second"])
        print(f"\n{'samples/s':24}" + "".join(f"{side:>17}" for side in sides) + f"{'/ best PyTorch':>16}{'from-to':>12}")
        for name, result in timed.items():
            speeds = result["samples_per_second"]
            print(f"{name:24}" + "".join(f"{speeds[side]:17.1f}" for side in sides) + f"{result['ratio']:16.2f}{spread(result['ratios']):>12}")
            for line in result.get("clocks", []):
                print(f"  clocks: {line}")
    sized = {name: result for name, result in results.items() if "peak_bytes" in result}
    if sized:
        print(f"\n{'MB at the peak':24}{'PyTorch':>17}{'vitrine':>17}{'/ PyTorch':>16}")
        for name, result in sized.items():
            peak = result["peak_bytes"]
            print(f"{name:24}{peak['pytorch'] / 1e6:17.1f}{peak['vitrine'] / 1e6:17.1f}{result['peak_ratio']:16.3f}")
    if report.get("all_reduce"):
        print(f"\n{'all-reduce, 2 ranks, us':24}{'Open MPI':>17}{'one process':>17}{'two processes':>17}")
        for size, ways in report["all_reduce"].items():
            print(f"{int(size) >> 10:>20} KiB" + "".join(f"{ways[way]:17.1f}" for way in ("Open MPI", "one process", "two processes")))


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
    return subprocess.run([python, "-c", f"import {module}"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def find_python():
    for python in (sys.executable, "/usr/bin/python3"):
        if has_module(python, "torch"):
            return python
    return sys.exit("compare_pytorch: no PyTorch here. Install it with: apt-get install python3-torch")


def main():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vitrine", default=os.path.join(root, "build", "release", "bin", "vitrine"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", help=f"some of {', '.join(cpu_jobs())}; on a GPU of {', '.join(gpu_jobs())}")
    parser.add_argument("--precision", help="only the jobs in these: f32,bf16; on a GPU also tf32,fp16")
    parser.add_argument("--compile", action="store_true", help="torch.compile on the CPU too")
    parser.add_argument("--no-all-reduce", action="store_true", help="leave out the table of all-reduce")
    parser.add_argument("--json", metavar="FILE", help="what was measured, after each job")
    parser.add_argument("--plot", metavar="FILE", help="the ratios as a picture: .svg, .png, .pdf")
    for hidden in ("--child", "--side", "--rendezvous"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--all-reduce-child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return torch_child(json.loads(arguments.child), arguments.rank, arguments.rendezvous, arguments.side, arguments.memory)
    if arguments.all_reduce_child:
        return all_reduce_child()
    jobs = gpu_jobs() if arguments.device == "cuda" else cpu_jobs()
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
    python = find_python()
    report = {"facts": facts_of(python, arguments), "results": {}}
    for name in [name for name in names if jobs[name]["precision"] in precisions]:
        report["results"][name] = measure(name, jobs[name], python, arguments)
        write_report(report, arguments)
    if arguments.device == "cpu" and not arguments.no_all_reduce and not arguments.jobs:
        mpi_python = next((p for p in (python, "/usr/bin/python3") if has_module(p, "mpi4py")), None)
        if mpi_python is None:
            print("compare_pytorch: all-reduce is not compared: install python3-mpi4py", file=sys.stderr)
        else:
            report["all_reduce"] = compare_all_reduce(mpi_python, arguments)
            write_report(report, arguments)
    print_tables(report)
    if arguments.plot:
        plot(report, arguments.plot)
    return None


def write_report(report, arguments):
    """After each job: what was measured is kept if a later one fails."""
    if not arguments.json:
        return
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
