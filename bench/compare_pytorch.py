#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares training speed and memory of Vitrine and PyTorch on the same CPU cores or the same GPU: samples per second, measured alternately, and bytes at
the peak.

Jobs whose names end in -fp16 or -bf16 run in mixed precision on both sides: PyTorch under autocast, fp16 with GradScaler (on the CPU only bf16 has a
useful autocast, so fp16 has no counterpart there).

On the CPU, PyTorch runs eager, in a separate process, once with defaults ("default") and once with malloc set to keep its memory and to use huge
pages ("tuned"); in both cases the faster of the contiguous and channels_last layouts counts. Its inputs are prepared f32 images; Vitrine's
are u8 images that it loads and normalizes as part of the step. The counterpart of several devices is DistributedDataParallel on Gloo, one process
for each device. In the jobs whose names end in -mpi, Vitrine also runs one process for each device, started by mpirun.

On a GPU (--device cuda), PyTorch runs eager, once with defaults and once with a fused optimizer and cuDNN's search for the fastest
algorithms ("tuned"). TF32 is off on both sides except in the jobs whose names end in -tf32. PyTorch's inputs are on the GPU; Vitrine's come from
pinned memory.

Neither side counts warm-up steps; each figure is the median over the rounds.

Memory is the peak of one device, in a separate run. For PyTorch on the CPU it is the memory allocated by its allocator according to the memory
profile, from before the creation of the model to the end of three steps: parameters, gradients, optimizer state, inputs, activations and temporary
tensors, without oneDNN's own allocations; on a GPU it is torch.cuda.max_memory_allocated(), without the reserve of the caching allocator. For
Vitrine it is all memory that it takes from the device, including staging, library workspace and gaps between blocks.

usage: compare_pytorch.py [--device cpu|cuda] [--vitrine build/release/bin/vitrine] [--rounds 3] [--jobs NAME,...] [--json FILE]
PyTorch from Debian's python3-torch is sufficient; torchvision is not needed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

JOBS = {  # threads: on each device
    "alexnet-b64": {"model": "alexnet", "size": 227, "batch": 64, "devices": 1, "threads": 4, "optimizer": "adamw", "steps": 8},
    "alexnet-b32-1thread": {"model": "alexnet", "size": 227, "batch": 32, "devices": 1, "threads": 1, "optimizer": "adamw", "steps": 5},
    "small-cnn-b128": {"model": "small-cnn", "size": 32, "batch": 128, "devices": 1, "threads": 4, "optimizer": "adam", "steps": 100},
    "small-cnn-b128-1thread": {"model": "small-cnn", "size": 32, "batch": 128, "devices": 1, "threads": 1, "optimizer": "adam", "steps": 40},
    "alexnet-b64-bf16": {"model": "alexnet", "size": 227, "batch": 64, "devices": 1, "threads": 4, "optimizer": "adamw", "steps": 8, "precision": "bf16"},
    "small-cnn-b128-bf16": {"model": "small-cnn", "size": 32, "batch": 128, "devices": 1, "threads": 4, "optimizer": "adam", "steps": 100,
                            "precision": "bf16"},
    "alexnet-4x32": {"model": "alexnet", "size": 227, "batch": 128, "devices": 4, "threads": 1, "optimizer": "adamw", "steps": 5},
    "alexnet-4x32-mpi": {"model": "alexnet", "size": 227, "batch": 128, "devices": 4, "threads": 1, "optimizer": "adamw", "steps": 5, "mpi": True},
}
GPU_JOBS = {
    "alexnet-b512": {"model": "alexnet", "size": 227, "batch": 512, "optimizer": "adamw", "steps": 40},
    "alexnet-b512-tf32": {"model": "alexnet", "size": 227, "batch": 512, "optimizer": "adamw", "steps": 60, "tf32": True},
    "alexnet-b512-fp16": {"model": "alexnet", "size": 227, "batch": 512, "optimizer": "adamw", "steps": 100, "precision": "fp16"},
    "alexnet-b512-bf16": {"model": "alexnet", "size": 227, "batch": 512, "optimizer": "adamw", "steps": 100, "precision": "bf16"},
    "alexnet-b64": {"model": "alexnet", "size": 227, "batch": 64, "optimizer": "adamw", "steps": 200},
    "small-cnn-b128-fp16": {"model": "small-cnn", "size": 32, "batch": 128, "optimizer": "adam", "steps": 1000, "precision": "fp16"},
    "small-cnn-b128": {"model": "small-cnn", "size": 32, "batch": 128, "optimizer": "adam", "steps": 1000},
}
for gpu_job in GPU_JOBS.values():
    gpu_job.update(device="cuda", devices=1, threads=4)
WARM_UP = 3
TUNED = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


def make_torch_model(torch, name):
    nn = torch.nn
    if name == "small-cnn":
        features = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        return nn.Sequential(*features, nn.Flatten(), nn.Linear(64 * 8 * 8, 128), nn.ReLU(inplace=True), nn.Linear(128, 10))
    features = [nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
                nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
                nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True),
                nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True),
                nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d((6, 6))]
    classifier = [nn.Dropout(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(inplace=True),
                  nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 10)]
    return nn.Sequential(*features, nn.Flatten(), *classifier)


def mixed_step(torch, job, model, images, labels, optimizer, loss_function):
    """One training step under autocast, with GradScaler in fp16; returns the function that does it."""
    device = images.device.type
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[job["precision"]]
    scaler = torch.cuda.amp.GradScaler(enabled=job["precision"] == "fp16")

    def step():
        with torch.autocast(device, dtype=dtype):
            loss = loss_function(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def make_step(torch, job, model, images, labels, optimizer, loss_function):
    """A function that does one training step."""
    if "precision" in job:
        return mixed_step(torch, job, model, images, labels, optimizer, loss_function)

    def step():
        loss_function(model(images), labels).backward()
        optimizer.step()

    return step


def peak_of_torch(torch, job, layout):
    """Bytes allocated at the peak of three training steps, the model and what it is trained with included."""
    on_gpu = job.get("device") == "cuda"
    device = "cuda" if on_gpu else "cpu"
    samples = job["batch"] // job["devices"]

    def steps():
        model = make_torch_model(torch, job["model"]).to(device=device, memory_format=layout)
        images = torch.randn(samples, 3, job["size"], job["size"], device=device).to(memory_format=layout)
        labels = torch.randint(0, 10, (samples,), device=device)
        trained = torch.nn.parallel.DistributedDataParallel(model) if job["devices"] > 1 else model
        optimizer = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[job["optimizer"]](model.parameters(), lr=1e-4)
        train = make_step(torch, job, trained, images, labels, optimizer, torch.nn.CrossEntropyLoss())
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            train()

    if on_gpu:
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


def time_torch_on_gpu(torch, job, layout, tuned):
    """Seconds of a training step: the mean over all of them, since the host runs ahead of the GPU."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job.get("tf32", False)
    torch.backends.cudnn.benchmark = tuned
    model = make_torch_model(torch, job["model"]).to(device="cuda", memory_format=layout)
    images = torch.randn(job["batch"], 3, job["size"], job["size"], device="cuda").to(memory_format=layout)
    labels = torch.randint(0, 10, (job["batch"],), device="cuda")
    optimizer_class = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[job["optimizer"]]
    optimizer = optimizer_class(model.parameters(), lr=1e-4, **({"fused": True} if tuned else {}))
    loss_function = torch.nn.CrossEntropyLoss()
    train = make_step(torch, job, model, images, labels, optimizer, loss_function)
    for step in range(WARM_UP + job["steps"]):
        if step == WARM_UP:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        train()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / job["steps"]


def time_torch(torch, job, layout, rank_count):
    """Seconds of the median training step."""
    model = make_torch_model(torch, job["model"]).to(memory_format=layout)
    samples = job["batch"] // rank_count
    images = torch.randn(samples, 3, job["size"], job["size"]).to(memory_format=layout)
    labels = torch.randint(0, 10, (samples,))
    trained = torch.nn.parallel.DistributedDataParallel(model) if rank_count > 1 else model
    optimizer = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[job["optimizer"]](model.parameters(), lr=1e-4)
    loss_function = torch.nn.CrossEntropyLoss()
    train = make_step(torch, job, trained, images, labels, optimizer, loss_function)
    times = []
    for step in range(WARM_UP + job["steps"]):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        train()
        if step >= WARM_UP:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def torch_child(job, rank, rank_count, rendezvous, tuned, memory):
    """Runs in the process that is measured; prints {layout: seconds of a step}, or {layout: bytes} of memory."""
    import torch
    on_gpu = job.get("device") == "cuda"
    torch.set_num_threads(job["threads"])
    torch.manual_seed(rank)
    if rank_count > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=rank_count)
    layouts = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
    if memory:
        print(json.dumps({"bytes": {name: peak_of_torch(torch, job, layout) for name, layout in layouts.items()}}))
        return
    seconds = {name: time_torch_on_gpu(torch, job, layout, tuned) if on_gpu else time_torch(torch, job, layout, rank_count)
               for name, layout in layouts.items()}
    print(json.dumps({"seconds": seconds, "version": torch.__version__, "gpu": torch.cuda.get_device_name() if on_gpu else None}))


def run_torch_children(python, job, flags, tuned):
    """What each of its processes printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(job["threads"]), **(TUNED if tuned and "device" not in job else {})}
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = os.path.join(folder, "rendezvous")
        command = [python, os.path.abspath(__file__), "--child", json.dumps(job), "--rendezvous", rendezvous, *flags, "--rank"]
        children = [subprocess.Popen(command + [str(rank)], env=environment, stdout=subprocess.PIPE, text=True) for rank in range(job["devices"])]
        outputs = [child.communicate()[0] for child in children]
    if any(child.returncode != 0 for child in children):
        sys.exit(f"compare_pytorch: PyTorch failed on {job['model']}, see above")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def peak_torch(python, job):
    """Bytes at the peak of one process, in the layout that needs less."""
    answers = run_torch_children(python, job, ["--memory"], False)
    return min(max(a["bytes"][layout] for a in answers) for layout in answers[0]["bytes"])


def run_torch(python, job, tuned):
    """{layout: samples per second} and PyTorch's version."""
    answers = run_torch_children(python, job, ["--tuned"] * tuned, tuned)
    slowest = {layout: max(a["seconds"][layout] for a in answers) for layout in answers[0]["seconds"]}
    return {layout: job["batch"] / seconds for layout, seconds in slowest.items()}, answers[0]["version"]


def run_vitrine(program, job):
    """Samples per second over the steps after the first, from the run's own account of its wall time, and bytes of one device at its peak."""
    steps = WARM_UP + job["steps"]
    command = [program, "train", "--model", job["model"], "--data", f"synthetic:{max(4 * job['batch'], 1024)}", "--image-size", str(job["size"]),
               "--batch-size", str(job["batch"]), "--optimizer", job["optimizer"], "--lr", "1e-4", "--steps", str(steps), "--drop-last", "--no-eval", "--json"]
    if "precision" in job:
        command += ["--precision", job["precision"]]
    if "device" in job:
        command += ["--devices", "cuda:0"] + ["--tf32"] * job.get("tf32", False)
    else:
        several = job["devices"] > 1 and "mpi" not in job
        command += ["--devices", f"cpu:0-{job['devices'] - 1}" if several else "cpu:0", "--threads-per-device", str(job["threads"])]
    if "mpi" in job:
        command = ["mpirun", "--bind-to", "none", "-np", str(job["devices"]), *command]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"compare_pytorch: failed with {run.returncode}: {' '.join(command)}")
    result = json.loads(run.stdout)
    row = max(result["phases"], key=lambda phase: phase["share"])
    peak = max(device["peak_bytes"] for device in result["devices"])
    return job["batch"] * (steps - 1) / (row["seconds"] / row["share"]), peak


def has_torch(python):
    return subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def find_python():
    for python in (sys.executable, "/usr/bin/python3"):
        if has_torch(python):
            return python
    return sys.exit("compare_pytorch: no PyTorch here. Install it with: apt-get install python3-torch")


def fit_to_cores(job):
    cores = len(os.sched_getaffinity(0))
    return {**job, "threads": max(1, min(job["threads"], cores // job["devices"]))}


def measure(name, job, python, program, rounds):
    samples = {"pytorch": [], "pytorch_tuned": [], "vitrine": []}
    layouts, version = {}, ""
    for number in range(rounds):
        print(f"{name}: round {number + 1} of {rounds}", file=sys.stderr)
        for side, tuned in (("pytorch", False), ("pytorch_tuned", True)):
            speeds, version = run_torch(python, job, tuned)
            layouts[side] = max(speeds, key=speeds.get)
            samples[side].append(speeds[layouts[side]])
        speed, peak = run_vitrine(program, job)
        samples["vitrine"].append(speed)
    medians = {side: statistics.median(values) for side, values in samples.items()}
    peaks = {"pytorch": peak_torch(python, job), "vitrine": peak}
    return {"job": job, "samples_per_second": medians, "peak_bytes": peaks, "peak_ratio": peaks["vitrine"] / peaks["pytorch"], "rounds": samples, "layouts": layouts, "pytorch_version": version,
            "ratio_to_default": medians["vitrine"] / medians["pytorch"], "ratio_to_tuned": medians["vitrine"] / medians["pytorch_tuned"]}


def print_table(results):
    print(f"{'samples/s':24}{'PyTorch':>10}{'tuned':>10}{'Vitrine':>10}{'/ PyTorch':>12}{'/ tuned':>10}")
    for name, result in results.items():
        speed = result["samples_per_second"]
        print(f"{name:24}{speed['pytorch']:10.1f}{speed['pytorch_tuned']:10.1f}{speed['vitrine']:10.1f}"
              f"{result['ratio_to_default']:12.2f}{result['ratio_to_tuned']:10.2f}")
    print(f"\n{'MB at the peak':24}{'PyTorch':>10}{'Vitrine':>20}{'/ PyTorch':>12}")
    for name, result in results.items():
        peak = result["peak_bytes"]
        print(f"{name:24}{peak['pytorch'] / 1e6:10.1f}{peak['vitrine'] / 1e6:20.1f}{result['peak_ratio']:12.2f}")


def main():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vitrine", default=os.path.join(root, "build", "release", "bin", "vitrine"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--jobs", help=f"of {', '.join(JOBS)}; on a GPU of {', '.join(GPU_JOBS)}")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--tuned", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--rendezvous", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        job = json.loads(arguments.child)
        torch_child(job, arguments.rank, job["devices"], arguments.rendezvous, arguments.tuned, arguments.memory)
        return
    jobs = GPU_JOBS if arguments.device == "cuda" else JOBS
    names = arguments.jobs.split(",") if arguments.jobs else list(jobs)
    unknown = [name for name in names if name not in jobs]
    if unknown:
        parser.error(f"unknown job {unknown[0]}: there are {', '.join(jobs)}")
    if not os.access(arguments.vitrine, os.X_OK):
        parser.error(f"{arguments.vitrine} does not exist; build it, or pass its path with --vitrine")
    python = find_python()
    results = {}
    for name in names:
        results[name] = measure(name, fit_to_cores(jobs[name]), python, arguments.vitrine, arguments.rounds)
        if arguments.json:  # after each job: what was measured is kept if a later one fails
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump({"cores": len(os.sched_getaffinity(0)), "results": results}, file, indent=1)
    print_table(results)


if __name__ == "__main__":
    main()
