#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes data/grad_scaler.json: what torch.amp.GradScaler makes of sequences of finite and non-finite gradients, for loss_scaler_test.cpp.

usage: python3 record_grad_scaler.py > data/grad_scaler.json          (needs PyTorch 2.3 or later, where GradScaler works on the CPU)
"""
import json
import random

import torch

INF, NAN = float("inf"), float("nan")
COUNT = 2
# name, constants, steps, probability of a non-finite step, norm to clip to
VARIANTS = [
    ("defaults", {}, 4200, 0.0006, None),
    ("defaults_clipped", {}, 60, 0.2, 0.5),
    ("short_interval", {"init_scale": 1024.0, "growth_interval": 3}, 120, 0.15, None),
    ("other_factors", {"init_scale": 100.0, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 4}, 80, 0.25, 1.0),
    ("grows_to_the_end", {"init_scale": 2.0**120, "growth_factor": 16.0, "growth_interval": 1}, 12, 0.0, None),
    ("all_overflow", {"init_scale": 65536.0}, 30, 1.0, None),
]


def word(value):
    """JSON has no infinity and no NaN."""
    return value if value == value and abs(value) != INF else str(value)


def run(name, constants, steps, probability, clip):
    draw = random.Random(name)
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, COUNT))
    optimizer = torch.optim.SGD([parameter], lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", **constants)
    scaler.scale(torch.ones(()))  # makes the state
    entries = []
    for _ in range(steps):
        scale = scaler.get_scale()
        mean = [draw.randint(-64, 64) / 64 for _ in range(COUNT)]
        scaled = [value * scale for value in mean]
        if draw.random() < probability:
            scaled[draw.randrange(COUNT)] = draw.choice([INF, -INF, NAN])
        parameter.grad = torch.tensor(scaled, dtype=torch.float32)
        parameter_gradient = parameter.grad.tolist()
        if clip is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([parameter], clip)
        scaler.step(optimizer)
        scaler.update()
        state = scaler.state_dict()
        entries.append({"gradient": [word(v) for v in parameter_gradient], "scale": state["scale"], "growth_tracker": state["_growth_tracker"]})
        if steps < 1000 or len(entries) == steps:
            entries[-1]["parameter"] = parameter.tolist()
    state = scaler.state_dict()
    return {"name": name, "init_scale": constants.get("init_scale", 65536.0), "growth_factor": state["growth_factor"],
            "backoff_factor": state["backoff_factor"], "growth_interval": state["growth_interval"], "clip_norm": clip, "steps": entries}


print(json.dumps({"torch": torch.__version__, "lr": 0.01, "momentum": 0.9, "start": torch.linspace(-1, 1, COUNT).tolist(),
                  "variants": [run(*variant) for variant in VARIANTS]}, separators=(",", ":")))
