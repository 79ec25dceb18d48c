#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes data/schedules.json: the learning rates and momenta that torch.optim.lr_scheduler sets, tick by tick, for lr_schedule_test.cpp, and step by
step under flags of vitrine train, for schedule_flags_test.cpp.

usage: python3 record_schedules.py > data/schedules.json          (needs PyTorch 1.12 or later)
"""
import json
import math
import random

import torch
from torch.optim import lr_scheduler as s

LR = 0.1
STEPS_PER_EPOCH = 10


def optimizer(kind="sgd"):
    parameter = torch.nn.Parameter(torch.zeros(1))
    if kind == "sgd":
        return torch.optim.SGD([parameter], lr=LR, momentum=0.9)
    return torch.optim.AdamW([parameter], lr=LR)


def momentum_of(group):
    return group["betas"][0] if "betas" in group else group["momentum"]


def run(name, make, ticks, kind="sgd", config=None):
    o = optimizer(kind)
    scheduler = make(o)
    rows = []
    for _ in range(ticks):
        rows.append([o.param_groups[0]["lr"], momentum_of(o.param_groups[0])])
        o.step()
        scheduler.step()
    return {"name": name, "config": config or {}, "values": rows}


def plateau(name, metrics, **arguments):
    o = optimizer()
    scheduler = s.ReduceLROnPlateau(o, **arguments)
    rows = []
    for metric in metrics:
        rows.append([o.param_groups[0]["lr"], 0.9])
        o.step()
        scheduler.step(metric)
    return {"name": name, "config": arguments, "values": rows, "metrics": [m if m == m else "nan" for m in metrics]}


def warmed(make, steps, factor):
    return lambda o: s.SequentialLR(o, [s.LinearLR(o, start_factor=factor, total_iters=steps), make(o)], milestones=[steps])


def flags(text, make, steps=60):
    """What the flags say, in epochs of STEPS_PER_EPOCH optimizer steps."""
    return {"flags": text, "steps_per_epoch": STEPS_PER_EPOCH, "steps": steps, "values": run(text, make, steps)["values"]}


def warm_plateau(text, warmup, metrics, **arguments):
    """SequentialLR takes no ReduceLROnPlateau: the warm-up steps after each step, the plateau after each epoch."""
    o = optimizer()
    linear = s.LinearLR(o, start_factor=1.0 / 3.0, total_iters=warmup)
    reduce = s.ReduceLROnPlateau(o, **arguments)
    rows = []
    for metric in metrics:
        for _ in range(STEPS_PER_EPOCH):
            rows.append([o.param_groups[0]["lr"], 0.9])
            o.step()
            linear.step()
        reduce.step(metric)
    return {"flags": text, "steps_per_epoch": STEPS_PER_EPOCH, "steps": len(rows), "values": rows, "metrics": metrics}


def cases_of_flags():
    third, epoch = 1.0 / 3.0, STEPS_PER_EPOCH
    return [
        flags("--warmup-steps 15", lambda o: s.LinearLR(o, start_factor=third, total_iters=15)),
        flags("--lr-schedule step --lr-step-size 2", lambda o: s.StepLR(o, 2 * epoch)),
        flags("--lr-schedule step --lr-step-size 1 --warmup-steps 15", warmed(lambda o: s.StepLR(o, epoch), 15, third)),
        flags("--lr-schedule step --lr-step-size 2 --lr-gamma 0.5 --warmup-steps 10 --warmup-factor 0.1",
              warmed(lambda o: s.StepLR(o, 2 * epoch, gamma=0.5), 10, 0.1)),
        flags("--lr-schedule multi-step --lr-milestones 1,3 --warmup-steps 15",
              warmed(lambda o: s.MultiStepLR(o, [epoch, 3 * epoch]), 15, third)),
        flags("--lr-schedule cosine --warmup-steps 12", warmed(lambda o: s.CosineAnnealingLR(o, 48), 12, third)),
        flags("--lr-schedule one-cycle --warmup-steps 12", warmed(lambda o: s.OneCycleLR(o, max_lr=LR, total_steps=48), 12, third)),
        warm_plateau("--lr-schedule plateau --lr-patience 0 --warmup-steps 25", 25, [1.0, 1.5, 0.5, 0.6, 0.4, 0.7], patience=0),
    ]


def short_runs():
    """Every schedule that knows its end, over 1 to 10 ticks, with several warm-ups before it."""
    schedules = {"one_cycle": lambda o, total: s.OneCycleLR(o, max_lr=LR, total_steps=total),
                 "cosine": lambda o, total: s.CosineAnnealingLR(o, total)}
    runs = []
    for name, schedule in schedules.items():
        for total in range(1, 11):
            for warmup in (0, 1, 2, 5):
                def make(o):
                    return schedule(o, total)
                values = run(name, warmed(make, warmup, 1.0 / 3.0) if warmup else make, warmup + total)["values"]
                runs.append({"name": name, "total": total, "warmup": warmup, "values": values})
    return runs


def main():
    rng = random.Random(3)
    falling = [2.0 * math.exp(-0.2 * i) + 0.3 + rng.uniform(-0.02, 0.02) for i in range(80)]
    rising = [1.0 - 0.7 * math.exp(-0.2 * i) + rng.uniform(-0.01, 0.01) for i in range(80)]
    with_nan = falling[:20] + [float("nan")] * 6 + falling[26:40]
    cases = [
        run("step", lambda o: s.StepLR(o, 7), 40),
        run("step_gamma", lambda o: s.StepLR(o, 1, gamma=0.9), 30),
        run("multi_step", lambda o: s.MultiStepLR(o, [3, 10, 10, 25], gamma=0.5), 40),
        run("cosine", lambda o: s.CosineAnnealingLR(o, 50), 51),
        run("cosine_floor", lambda o: s.CosineAnnealingLR(o, 20, eta_min=0.01), 21),
        run("warm_cosine", warmed(lambda o: s.CosineAnnealingLR(o, 30), 10, 1.0 / 3.0), 40),
        run("warm_step", warmed(lambda o: s.StepLR(o, 8), 5, 0.1), 40),
        run("one_cycle_sgd", lambda o: s.OneCycleLR(o, max_lr=LR, total_steps=60), 60),
        run("one_cycle_adamw", lambda o: s.OneCycleLR(o, max_lr=LR, total_steps=33, pct_start=0.2, div_factor=10, final_div_factor=100), 33, "adamw"),
        plateau("plateau", falling),
        plateau("plateau_short", falling, patience=2, factor=0.5, cooldown=3, min_lr=0.004),
        plateau("plateau_accuracy", rising, mode="max", patience=4, threshold=1e-3),
        plateau("plateau_nan", with_nan, patience=2),
    ]
    print(json.dumps({"torch": torch.__version__, "lr": LR, "cases": cases, "flags": cases_of_flags(), "short": short_runs()}, separators=(",", ":")))


main()
