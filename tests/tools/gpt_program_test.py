#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program with models of tokens: plans are exact to the byte for drawn configurations, --exact has one hash under every scheme, the characters of a
text are kept with weights and checkpoints, and what says nothing for tokens is refused.

usage: gpt_program_test.py VITRINE [DRAWS] [SEED]     DRAWS: configurations whose plan is compared with a run [6]
"""
import json
import math
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

MODES = ["dp", "balanced", "criterion", "ddp", "zero1", "zero2", "zero3"]
TEXT = "In the beginning was the word, and the word was with the wise.\n" * 12
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def start(*arguments, launcher=()):
    return subprocess.run([*launcher, sys.argv[1], *map(str, arguments)], capture_output=True, text=True, env={**os.environ, **MPI})


def run(*arguments, status=0, launcher=()):
    ended = start(*arguments, launcher=launcher)
    assert ended.returncode == status, f"{' '.join(map(str, arguments))}: exit status {ended.returncode}, expected {status}: {ended.stderr}"
    return ended


def json_of(*arguments, **options):
    return json.loads(run(*arguments, "--json", **options).stdout)


def write_model(path, tokens, vocabulary, width=16, heads=2, layers=2, dropout=0.0):
    def linear(name, outputs):
        return {"name": name, "type": "Conv1D", "nf": outputs}

    def branch(*parts):
        return {"name": "", "type": "Residual", "layers": [*parts, {"name": "drop", "type": "Dropout", "p": dropout}]}

    blocks = [{"name": f"h.{i}", "type": "Sequential", "layers": [
        branch({"name": "ln_1", "type": "LayerNorm"}, linear("attn.c_attn", 3 * width), {"name": "attn", "type": "CausalSelfAttention", "num_heads": heads},
               linear("attn.c_proj", width)),
        branch({"name": "ln_2", "type": "LayerNorm"}, linear("mlp.c_fc", 4 * width), {"name": "act", "type": "GELU", "approximate": "tanh"},
               linear("mlp.c_proj", width))]} for i in range(layers)]
    path.write_text(json.dumps({"input": [tokens], "layers": [
        {"name": "wte", "type": "Embedding", "num_embeddings": vocabulary, "embedding_dim": width}, {"name": "wpe", "type": "Positions"}, *blocks,
        {"name": "ln_f", "type": "LayerNorm"}, {"name": "lm_head", "type": "Linear", "out_features": vocabulary, "bias": False,
                                                "shared_weight": "wte.weight"}]}))
    return path


def draw(dice, folder):
    """Arguments of a job, which train and plan share."""
    heads = dice.choice([1, 2, 3])
    layers = dice.randint(1, 3)
    model = write_model(folder / "drawn.json", tokens=dice.choice([2, 5, 16, 33]), vocabulary=dice.choice([17, 64, 100]), heads=heads,
                        width=heads * dice.choice([4, 8, 20]), layers=layers, dropout=dice.choice([0, 0.1]))
    mode, devices, batch = dice.choice(MODES), dice.randint(1, 4), dice.randint(4, 20)
    arguments = ["--model", model, "--data", "synthetic:90", "--mode", mode, "--devices", f"cpu:0-{devices - 1}", "--batch-size", batch, "--steps", 3,
                 "--threads-per-device", 1, "--workspace", "1MiB"]
    exact = dice.random() < 0.2
    if mode == "balanced":
        arguments += ["--split", "gpu0=1" if devices > 1 else f"gpu0={batch}"]
    if exact:
        arguments += ["--exact", "--leaves", 4]
    if dice.random() < 0.3:
        arguments += ["--accumulate", 2]
    if dice.random() < 0.3:
        arguments += ["--recompute", f"h.0-h.{layers - 1}"]
    if dice.random() < 0.3:
        arguments += ["--clip-norm", 1]
    elif mode in ("ddp", "zero1", "zero2", "zero3") and not exact and "--accumulate" not in arguments and dice.random() < 0.4:
        arguments += ["--update-in-backward"]
    if dice.random() < 0.3:
        arguments += ["--ema", 0.9]
    if dice.random() < 0.3:
        arguments += ["--bucket-mb", 0.01, "--first-bucket-mb", 0.002]
    if dice.random() < 0.3:
        arguments += ["--label-smoothing", 0.1]
    if dice.random() < 0.2:
        arguments += ["--no-eval"]
    return arguments + ["--precision", dice.choice(["fp32", "fp32", "bf16", "fp16"]), "--optimizer", dice.choice(["sgd", "adamw"])]


def plans_are_exact(folder, count, seed):
    dice = random.Random(seed)
    exact = refused = 0
    while exact < count:
        job = draw(dice, folder)
        where = " ".join(map(str, job))
        if (plan := start("plan", *job, "--json")).returncode == 2:  # a combination that does not work: train says the same
            assert plan.stderr == start("train", *job, "--json").stderr, where
            refused += 1
            assert refused <= 20 + count, plan.stderr
            continue
        planned, measured = json.loads(plan.stdout), json_of("train", *job)
        for plan, device in zip(planned["devices"], measured["devices"], strict=True):
            for key in ("peak_bytes", "peak_bytes_by_category"):
                assert plan[key] == device[key], f"{where}: {device['device']}: {key}: planned {plan[key]}, measured {device[key]}"
        peak = max(device["peak_bytes"] for device in planned["devices"])
        run("train", *job, "--device-memory", peak)
        run("train", *job, "--device-memory", peak - 1, status=1)
        exact += 1
    print(f"{count} plans are exact; {refused} combinations were refused")


def exact_mode_has_one_hash(folder):
    model = write_model(folder / "exact.json", tokens=9, vocabulary=31)
    job = ["--model", model, "--data", "synthetic:60", "--batch-size", 12, "--steps", 3, "--exact", "--leaves", 4, "--threads-per-device", 1]
    hashes = set()

    def add(*arguments, launcher=()):
        ended = json_of("train", *job, *arguments, launcher=launcher)
        hashes.add((ended["state_hash"], tuple(ended["step_losses"]), ended["epochs"][0]["test_loss"]))

    for number, mode in enumerate(MODES):
        split = ["--split", "gpu0=3"] if mode == "balanced" else []
        add("--mode", mode, "--devices", f"cpu:0-{1 + number % 3}", *split)
    add("--mode", "ddp", "--devices", "cpu:0")
    launches = 0
    if shutil.which("mpirun"):
        for mode in ("ddp", "zero2", "zero3"):
            add("--mode", mode, "--devices", "cpu:0-1", launcher=["mpirun", "--oversubscribe", "-np", "2"])
            launches += 1
    assert len(hashes) == 1, hashes
    print(f"one hash in {len(MODES) + 1} runs of one process and {launches} of two")


def characters_are_kept(folder):
    text, other = folder / "text.txt", folder / "other.txt"
    text.write_text(TEXT)
    other.write_text(TEXT.replace("b", "\N{LATIN SMALL LETTER E WITH ACUTE}"))
    model = write_model(folder / "characters.json", tokens=8, vocabulary=len(set(TEXT)))
    job = ["--model", model, "--devices", "cpu:0", "--batch-size", 8]
    run("train", *job, "--data", f"characters:{text}", "--save", folder / "w.safetensors", "--checkpoint-dir", folder / "runs")
    measured = json_of("eval", *job, "--data", f"characters:{text}", "--weights", folder / "w.safetensors")
    assert math.isclose(measured["test_perplexity"], math.exp(measured["test_loss"]))
    assert math.isclose(measured["test_bits_per_byte"], measured["test_loss"] / math.log(2))
    assert math.isclose(measured["tokens_per_second"], 8 * measured["samples_per_second"])
    for weights in (folder / "w.safetensors", folder / "runs"):
        refused = run("eval", *job, "--data", f"characters:{other}", "--weights", weights, status=1).stderr
        assert "it knows other characters than --data has: '" in refused, refused
    refused = run("train", *job, "--data", f"characters:{other}", "--init-weights", folder / "w.safetensors", status=1).stderr
    assert "it knows other characters" in refused, refused
    refused = run("train", *job, "--data", f"characters:{other}", "--resume", folder / "runs", "--epochs", 2, status=2).stderr
    assert "--data is characters train" in refused, refused
    bytes_of = json_of("eval", *job, "--data", f"characters:{text}", "--weights", folder / "runs")
    assert bytes_of["test_loss"] == measured["test_loss"]
    print("characters are kept")


def images_flags_are_refused(folder):
    model = write_model(folder / "refusing.json", tokens=8, vocabulary=256)
    flags = {"--normalize none": "--normalize none", "--preprocess host": "--preprocess host", "--augment flip": "--augment flip",
             "--confusion": "--confusion", "--skip-damaged": "--skip-damaged", "--data-on-device on": "--data-on-device on"}
    for chosen in (["--model", "nano-gpt", "--sequence-length", 8], ["--model", model]):
        for flag, named in {**flags, "--image-size 32": "--image-size"}.items():
            refused = run("train", *chosen, "--data", "synthetic:40", *flag.split(), status=2).stderr
            assert refused.startswith(f"vitrine: {named}") and "leave it out" in refused, refused
    for arguments, sentence in {
            "--model nano-gpt --data cifar10:/nonexistent": "the model takes tokens; expected tokens:GLOB",
            "--model mlp --data text:/nonexistent": "expected cifar10:DIR",
            "--model mlp --sequence-length 8": "mlp takes no tokens; leave it out",
            "--model gpt2 --sequence-length 1025": "gpt2 takes sequences of 2 to 1024 tokens",
            f"--model nano-gpt --data text:{model} --classes 100": "has a vocabulary of 256; give at least as many outputs"}.items():
        refused = run("train", *arguments.split(), status=2).stderr
        assert sentence in refused, refused
    print("flags of images are refused")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        temporary = pathlib.Path(name)
        images_flags_are_refused(temporary)
        characters_are_kept(temporary)
        exact_mode_has_one_hash(temporary)
        plans_are_exact(temporary, int(sys.argv[2]) if len(sys.argv) > 2 else 6, int(sys.argv[3]) if len(sys.argv) > 3 else 1)
