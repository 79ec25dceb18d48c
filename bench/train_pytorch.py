#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains one job of compare_pytorch.py with PyTorch and measures it; compare_pytorch.py starts it in processes of their own.

usage: train_pytorch.py --job JSON --side SIDE [--memory] [--rank R --rendezvous FILE]    measures once
       train_pytorch.py --serve                                                             measures what each line of standard input asks for

An answer is a line of JSON: {"seconds": {layout: seconds of a step}}, {"bytes": {layout: bytes at the peak}}, or {"error": text}. A request is
{"job": ..., "side": ..., "layouts": [...], "memory": true or false}, or {"facts": true}.

A job with `resident` keeps a data set of u8 images on its device: each step gathers a batch by a part of a permutation, converts and normalizes it,
resizes it bilinearly (align_corners=False, as Vitrine does) where the model's size differs, and trains on it in the model's layout and dtype.
Other jobs train on one batch of f32 images that lie ready on the device.
"""
import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
import time
import traceback

WARM_UP = 3
COMPILED = ("compile", "reduce-overhead")
GRAPH = "cuda-graph"
LAYOUTS = ("contiguous", "channels_last")
STORED_SIZE = 32  # of the data set's images, as in Vitrine's synthetic one
MEAN, DEVIATION = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


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


def mixed_dtype(torch, job):
    return {"fp16": torch.float16, "bf16": torch.bfloat16}.get(job["precision"])


def memory_format(torch, layout):
    return {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}[layout]


def make_resident_images(torch, job, layout):
    """A module: the data set on the device; called with the indices of a batch, it returns the model's input and the labels."""
    channels_last, device = layout == "channels_last", job.get("device", "cpu")
    count, size = job["batch"] * job["steps"], job["size"]
    dtype = mixed_dtype(torch, job) or torch.float32

    class ResidentImages(torch.nn.Module):
        def __init__(self):
            super().__init__()
            stored = (count, STORED_SIZE, STORED_SIZE, 3) if channels_last else (count, 3, STORED_SIZE, STORED_SIZE)
            # Buffers: graphs of torch.compile read them in place, where they would copy other tensors in every step.
            self.register_buffer("images", torch.randint(0, 256, stored, dtype=torch.uint8, device=device))
            self.register_buffer("labels", torch.randint(0, 10, (count,), device=device))
            per_channel = [torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, DEVIATION)]
            self.register_buffer("scale", 1 / (255 * per_channel[1]))
            self.register_buffer("shift", -per_channel[0] / per_channel[1])

        def forward(self, rows):
            images = self.images[rows]
            if channels_last:
                images = images.permute(0, 3, 1, 2)
            # Both operations are linear: normalized before it is resized, an image takes less time, and differs by rounding only.
            images = torch.addcmul(self.shift, images.float(), self.scale).to(dtype)
            if size != STORED_SIZE:
                images = torch.nn.functional.interpolate(images, size=(size, size), mode="bilinear", align_corners=False)
            return images.contiguous(memory_format=memory_format(torch, layout)), self.labels[rows]

    return ResidentImages()


class Training:
    """A model, and what it is trained with and on."""

    def __init__(self, torch, job, layout, side):
        device = job.get("device", "cpu")
        on_gpu, self.samples = device == "cuda", job["batch"] // job["devices"]
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job["precision"] == "tf32"
        torch.backends.cudnn.benchmark = on_gpu and side != "eager"
        self.torch, self.device, self.steps, self.number = torch, device, job["steps"] if "resident" in job else None, 0
        model = make_torch_model(torch, job["model"]).to(device=device, memory_format=memory_format(torch, layout))
        optimizer_class = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[job["optimizer"]]
        self.graph = self.graph_rows = self.graph_loss = None
        self.optimizer = optimizer_class(model.parameters(), lr=1e-4, **({"fused": True, "capturable": side == GRAPH} if on_gpu and side != "eager" else {}))
        self.scaler = make_scaler(torch, device) if job["precision"] == "fp16" else None
        mixed, loss_function = mixed_dtype(torch, job), torch.nn.CrossEntropyLoss()

        def autocast():
            return torch.autocast(device, dtype=mixed) if mixed else contextlib.nullcontext()

        def compiled(module):
            options = {"mode": "reduce-overhead"} if side == "reduce-overhead" else {}
            return torch.compile(module, **options) if side in COMPILED else module

        if "resident" in job:
            data = make_resident_images(torch, job, layout)
            self.dataset_bytes = sum(buffer.nbytes for buffer in (data.images, data.labels))

            class Step(torch.nn.Module):
                """From indices to the loss, so that torch.compile sees all of it."""

                def __init__(self):
                    super().__init__()
                    self.data, self.model = data, model

                def forward(self, rows):
                    images, labels = self.data(rows)
                    with autocast():
                        return loss_function(self.model(images), labels)

            self.loss = compiled(Step())
            return
        images = torch.randn(self.samples, 3, job["size"], job["size"], device=device).to(memory_format=memory_format(torch, layout))
        labels = torch.randint(0, 10, (self.samples,), device=device)
        trained = compiled(torch.nn.parallel.DistributedDataParallel(model) if job["devices"] > 1 else model)
        self.dataset_bytes = 0

        def loss(_):
            with autocast():
                return loss_function(trained(images), labels)

        self.loss = loss

    def rows(self):
        """The indices of the next batch; a permutation of the data set is drawn at the start of an epoch."""
        if self.steps is None:
            return None
        position = self.number % self.steps
        if position == 0:
            self.permutation = self.torch.randperm(self.steps * self.samples, device=self.device)
        self.number += 1
        return self.permutation[position * self.samples : (position + 1) * self.samples]

    def begin_epoch(self):
        self.number = 0

    def capture(self):
        """Captures the whole step, from indices to the update, as one graph, after it has been issued on another stream a few times."""
        torch = self.torch
        self.graph_rows = self.rows().clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.issue(self.graph_rows)
        torch.cuda.current_stream().wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)  # the graph's gradients lie in its own memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.graph_loss = self.issue(self.graph_rows)
        self.graph = graph

    def step(self):
        rows = self.rows()
        if self.graph is None:
            return self.issue(rows)
        self.graph_rows.copy_(rows)
        self.graph.replay()
        return self.graph_loss

    def issue(self, rows):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(rows)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss


def make_scaler(torch, device):
    return torch.amp.GradScaler(device) if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler()


def peak_of_torch(torch, job, layout):
    """Bytes allocated at the peak of three training steps: the model and what it is trained with, without a data set on the device."""
    def steps():
        training = Training(torch, job, layout, "eager")
        for _ in range(3):
            training.step()
        # With the indices of an epoch.
        return training.dataset_bytes + (training.permutation.nbytes if training.steps else 0)

    if job.get("device") == "cuda":
        release(torch)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        dataset_bytes = steps()
        return torch.cuda.max_memory_allocated() - before - dataset_bytes
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        dataset_bytes = steps()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak - dataset_bytes


def time_torch(torch, job, layout, side):
    """Seconds of a training step: the median on a CPU, the mean over all on a GPU, where the host runs ahead."""
    training = Training(torch, job, layout, side)
    if side == GRAPH:
        training.capture()
    for _ in range(WARM_UP + 7 * (side in COMPILED)):
        training.step()
    training.begin_epoch()
    if job.get("device") == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(job["steps"]):
            training.step()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3 / job["steps"]
    times = []
    for _ in range(job["steps"]):
        begin = time.perf_counter()
        training.step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def release(torch):
    """Frees what an earlier measurement of this process holds."""
    if hasattr(torch, "_dynamo"):
        torch._dynamo.reset()  # also its count of compilations, above which it would run eagerly
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()
        torch.cuda.empty_cache()


def measure(torch, job, side, layouts, memory):
    if memory:
        return {"bytes": {layout: peak_of_torch(torch, job, layout) for layout in layouts}}
    seconds = {}
    for layout in layouts:
        seconds[layout] = time_torch(torch, job, layout, side)
        if job.get("device") == "cuda":
            release(torch)
    return {"seconds": seconds}


def facts(torch):
    on_gpu = torch.cuda.is_available()
    return {"version": torch.__version__, "config": torch.__config__.show(), "gpu": torch.cuda.get_device_name() if on_gpu else None,
            "cudnn": torch.backends.cudnn.version() if on_gpu else None}


def serve(torch, answers):
    """Answers requests until standard input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "facts" in request:
                answer = facts(torch)
            else:
                torch.manual_seed(0)
                answer = measure(torch, request["job"], request["side"], request["layouts"], request["memory"])
        except Exception as problem:  # the parent names it and goes on with another side
            traceback.print_exc()
            answer = {"error": f"{type(problem).__name__}: {str(problem).strip()[:600]}"}
        print(json.dumps(answer), file=answers, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true")
    for name in ("--job", "--side", "--rendezvous"):
        parser.add_argument(name)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--rank", type=int, default=0)
    arguments = parser.parse_args()
    # Libraries that print do not disturb the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    if arguments.serve:
        return serve(torch, answers)
    job = json.loads(arguments.job)
    torch.set_num_threads(job["threads"])
    torch.manual_seed(arguments.rank)
    if job["devices"] > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group("gloo", init_method=f"file://{arguments.rendezvous}", rank=arguments.rank, world_size=job["devices"])
    print(json.dumps(measure(torch, job, arguments.side, LAYOUTS, arguments.memory)), file=answers, flush=True)
    return None


if __name__ == "__main__":
    main()
