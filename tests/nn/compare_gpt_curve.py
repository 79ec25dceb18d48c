#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains nanoGPT's CPU configuration (4 layers, 128 wide, 4 heads, sequences of 64, batch 12) on the characters of a text with PyTorch and with Vitrine.

For each seed both start from the same weights (drawn by GPT-2's rules) and see the same batches: the text's windows in their order. f32, AdamW, no
dropout. Prints the training losses of some steps. The same training rounds differently in every library, and the differences grow with each step, so
PyTorch's own seeds measure what can be asked of Vitrine: exit status 1 if a loss is farther from PyTorch's with the same seed than PyTorch's seeds are
apart at that step.

usage: compare_gpt_curve.py TEXT [--vitrine build/release/bin/vitrine] [--seeds 1,2,3] [--at 100,500,2000]
TEXT: in UTF-8, of at least 64 x 12 x STEPS characters for windows that do not repeat. Takes some minutes on a CPU; the model is transformers' where it
is installed.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tools"))
import torch_gpt_test as gpt  # noqa: E402
from torch_files_test import write_safetensors  # noqa: E402

import torch  # noqa: E402

LAYERS, WIDTH, HEADS, TOKENS, BATCH = 4, 128, 4, 64, 12
BETAS, WEIGHT_DECAY = (0.9, 0.99), 0.1  # nanoGPT's
MODEL = gpt.Gpt if gpt.GPT2LMHeadModel is None else gpt.Transformers


def read_windows(path, steps):
    """(windows with the character after each, whole batches; the size of the vocabulary)"""
    text = path.read_bytes().decode()
    characters = sorted(set(text))
    number = {character: i for i, character in enumerate(characters)}
    windows = (len(text) - 1) // TOKENS
    count = min(steps * BATCH, (windows - windows // 10) // BATCH * BATCH)
    tokens = torch.tensor([number[character] for character in text[: count * TOKENS + 1]])
    return tokens.unfold(0, TOKENS + 1, TOKENS), len(characters)


def initial_weights(size, seed):
    torch.manual_seed(seed)
    model = MODEL(*size)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.zero_()
        elif parameter.dim() == 2:
            parameter.data.normal_(std=0.02 / ((2 * LAYERS) ** 0.5 if name.endswith("c_proj.weight") else 1))
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def losses_of_vitrine(size, weights, windows, steps, o):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        gpt.model_file(folder / "gpt.json", *size)
        write_safetensors(folder / "weights.safetensors", {name.removeprefix("model."): value for name, value in weights.items()})
        command = [o.vitrine, "train", "--model", folder / "gpt.json", "--data", f"characters:{o.text}", "--limit-samples", len(windows), "--no-shuffle",
                   "--no-eval", "--batch-size", BATCH, "--steps", steps, "--optimizer", "adamw", "--lr", 1e-3, "--adam-betas", ",".join(map(str, BETAS)),
                   "--weight-decay", WEIGHT_DECAY, "--init-weights", folder / "weights.safetensors", "--log", folder / "log.jsonl",
                   "--devices", "cpu:0", "--threads-per-device", torch.get_num_threads()]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        rows = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
        return [row["loss"] for row in rows if row["kind"] == "step"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--vitrine", default="build/release/bin/vitrine")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--at", default="100,500,2000")
    o = parser.parse_args()
    seeds, at = ([int(number) for number in numbers.split(",")] for numbers in (o.seeds, o.at))
    windows, vocabulary = read_windows(o.text, max(at))
    size = (LAYERS, WIDTH, HEADS, TOKENS, vocabulary)
    print(f"{len(windows)} windows, vocabulary {vocabulary}, PyTorch {torch.__version__}, {MODEL.__name__}; losses of steps {o.at}", flush=True)
    curves = []
    for seed in seeds:
        weights = initial_weights(size, seed)
        own = losses_of_vitrine(size, weights, windows, max(at), o)
        of_torch, _ = gpt.trained_losses(MODEL, size, weights, windows, steps=max(at), batch=BATCH, betas=BETAS, weight_decay=WEIGHT_DECAY)
        curves.append([(of_torch[step - 1], own[step - 1]) for step in at])
        for name, losses in zip((f"PyTorch, seed {seed}", f"Vitrine, seed {seed}"), zip(*curves[-1])):
            print(f"{name}: " + ", ".join(f"{loss:.4f}" for loss in losses), flush=True)
    near = True
    for step, pairs in zip(at, zip(*curves)):
        spread = max(loss for loss, _ in pairs) - min(loss for loss, _ in pairs)
        farthest = max(abs(own - loss) for loss, own in pairs)
        print(f"step {step}: PyTorch's seeds are {spread:.4f} apart, Vitrine is at most {farthest:.4f} from PyTorch's with the same seed")
        near = near and farthest <= spread
    return 0 if near else 1


if __name__ == "__main__":
    sys.exit(main())
