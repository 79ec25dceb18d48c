#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes data/resize.json: images resized by torch.nn.functional.interpolate, for image_test.cpp.

usage: python3 record_resize.py > data/resize.json
"""
import json

import torch

CASES = [((5, 7, 3), (11, 4)), ((8, 8, 1), (19, 19)), ((9, 6, 3), (4, 5)), ((2, 3, 2), (2, 9))]

torch.manual_seed(4)
record = {"torch": torch.__version__, "cases": []}
for (height, width, channels), target in CASES:
    image = torch.randint(0, 256, (height, width, channels), dtype=torch.uint8)
    nchw = image.permute(2, 0, 1).contiguous().unsqueeze(0).float() / 255
    out = torch.nn.functional.interpolate(nchw, size=target, mode="bilinear", align_corners=False, antialias=False)
    record["cases"].append(
        {
            "source": [height, width, channels],
            "target": [*target, channels],
            "pixels": image.flatten().tolist(),
            "resized": out[0].permute(1, 2, 0).flatten().tolist(),
        }
    )
print(json.dumps(record, indent=0))
