#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes data/optimizers.json: ten steps of PyTorch's optimizers on given gradients, for optimizer_test.cpp.

usage: python3 record_optimizers.py > data/optimizers.json
"""
import json

import torch

COUNT, STEPS = 13, 10
VARIANTS = [
    ("sgd", torch.optim.SGD, {"lr": 0.05}),
    ("sgd_weight_decay", torch.optim.SGD, {"lr": 0.05, "weight_decay": 0.01}),
    ("sgd_momentum", torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}),
    ("sgd_nesterov", torch.optim.SGD, {"lr": 0.02, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}),
    ("adam", torch.optim.Adam, {"lr": 1e-3}),
    ("adam_weight_decay", torch.optim.Adam, {"lr": 1e-2, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
    ("adamw", torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.01}),
    ("adamw_strong", torch.optim.AdamW, {"lr": 3e-2, "betas": (0.7, 0.95), "eps": 1e-7, "weight_decay": 0.3}),
]

torch.manual_seed(3)
start = torch.randn(COUNT)
grads = [torch.randn(COUNT) * (10.0 ** torch.randint(-4, 2, (COUNT,))) for _ in range(STEPS)]
record = {"torch": torch.__version__, "start": start.tolist(), "grads": [g.tolist() for g in grads], "variants": []}
for name, optimizer_class, options in VARIANTS:
    parameter = torch.nn.Parameter(start.clone())
    optimizer = optimizer_class([parameter], **options)
    trajectory = []
    for grad in grads:
        parameter.grad = grad.clone()
        optimizer.step()
        trajectory.append(parameter.detach().tolist())
    record["variants"].append({"name": name, "options": options, "parameters": trajectory})
print(json.dumps(record, indent=0))
