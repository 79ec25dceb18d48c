#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GPT beside the same model in PyTorch, with random weights: logits and every gradient to 1e-5 of the largest, and the losses of ten AdamW steps
to 1e-5, those of fp16 and bf16 to twice the error of autocast; what `vitrine sample` continues is the greedy continuation. Weights have transformers'
names and layouts; where transformers is there, its GPT2LMHeadModel is the model, and loads what Vitrine saves.

usage: torch_gpt_test.py VITRINE [MODES]     exits with 77 without PyTorch 2; MODES: of --mode, separated by commas
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from torch_files_test import read_safetensors, use_python_with_torch, write_safetensors  # noqa: E402

use_python_with_torch("from torch.nn.functional import scaled_dot_product_attention")

import numpy  # noqa: E402
import torch  # noqa: E402
from torch.nn import functional  # noqa: E402

try:
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError:
    GPT2LMHeadModel = None

# layers, width, heads, tokens, vocabulary
SIZES = [(2, 32, 2, 16, 61), (3, 96, 1, 70, 130)]
BATCH, STEPS, TOLERANCE = 6, 10, 1e-5


class Conv1D(torch.nn.Module):
    def __init__(self, out, into):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(into, out) / into**0.5)
        self.bias = torch.nn.Parameter(torch.randn(out) * 0.02)

    def forward(self, x):
        return x @ self.weight + self.bias


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        nn = torch.nn
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": Conv1D(3 * width, width), "c_proj": Conv1D(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": Conv1D(4 * width, width), "c_proj": Conv1D(width, 4 * width)})

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (part.view(n, t, self.heads, -1).transpose(1, 2) for part in self.attn["c_attn"](self.ln_1(x)).split(c, 2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(n, t, c))
        return x + self.mlp["c_proj"](functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self, layers, width, heads, tokens, vocabulary):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(tokens, width)
        self.h = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = torch.nn.LayerNorm(width)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


class Transformers(torch.nn.Module):
    def __init__(self, layers, width, heads, tokens, vocabulary):
        super().__init__()
        config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=tokens, vocab_size=vocabulary, resid_pdrop=0, embd_pdrop=0,
                            attn_pdrop=0)
        self.model = GPT2LMHeadModel(config)
        for name, parameter in self.model.named_parameters():  # those of the initialization give almost equal logits
            if name.endswith("weight") and parameter.dim() == 2:
                parameter.data.normal_(std=0.2)

    def forward(self, ids):
        return self.model(ids).logits


def model_file(path, layers, width, heads, tokens, vocabulary):
    def residual(*parts):
        return {"name": "", "type": "Residual", "layers": [dict(zip(("name", "type"), part[:2]), **part[2]) for part in parts]}

    blocks = [{"name": f"h.{i}", "type": "Sequential", "layers": [
        residual(("ln_1", "LayerNorm", {}), ("attn.c_attn", "Conv1D", {"nf": 3 * width}), ("attn", "CausalSelfAttention", {"num_heads": heads}),
                 ("attn.c_proj", "Conv1D", {"nf": width})),
        residual(("ln_2", "LayerNorm", {}), ("mlp.c_fc", "Conv1D", {"nf": 4 * width}), ("mlp.act", "GELU", {"approximate": "tanh"}),
                 ("mlp.c_proj", "Conv1D", {"nf": width}))]} for i in range(layers)]
    path.write_text(json.dumps({"input": [tokens], "layers": [
        {"name": "wte", "type": "Embedding", "num_embeddings": vocabulary, "embedding_dim": width}, {"name": "wpe", "type": "Positions"}, *blocks,
        {"name": "ln_f", "type": "LayerNorm"},
        {"name": "lm_head", "type": "Linear", "out_features": vocabulary, "bias": False, "shared_weight": "wte.weight"}]}))


def largest_difference(a, b):
    return ((a.double() - b.double()).abs().max() / b.double().abs().max()).item()


def expect(what, difference, tolerance=TOLERANCE):
    print(f"{what}: {difference:.2e}")
    if not difference <= tolerance:
        sys.exit(f"{what} differ by {difference}, expected at most {tolerance}")


def plain(name):
    return name.removeprefix("model.").removeprefix("transformer.")


def greedy(model, prompt, count):
    if GPT2LMHeadModel is not None:
        return model.model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False, pad_token_id=0)[0, len(prompt) :].tolist()
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(model(torch.tensor([tokens]))[0, -1].argmax().item())
    return tokens[len(prompt) :]


def trained_losses(make, size, state, windows, autocast=None, steps=STEPS, batch=BATCH, **of_adamw):
    """Losses of AdamW, and the model."""
    model = make(*size)
    model.load_state_dict(state)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, **of_adamw)
    losses = []
    for step in range(steps):
        first = step * batch % len(windows)
        with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
            loss = mean_loss(model, windows[first : first + batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def mean_loss(model, ids):
    logits = model(ids[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def check(size, folder, modes):
    *_, tokens, vocabulary = size
    torch.manual_seed(sum(size))
    make = Gpt if GPT2LMHeadModel is None else Transformers
    model = make(*size)
    random = numpy.random.default_rng(5)
    stream = random.integers(0, vocabulary, 40 * tokens + 1, dtype=numpy.uint16)
    (folder / "tokens.bin").write_bytes(stream.tobytes())
    windows = torch.from_numpy(numpy.stack([stream[i * tokens : i * tokens + tokens + 1] for i in range(40)]).astype(numpy.int64))
    train, test = windows[:36], windows[36:]
    model_file(folder / "gpt.json", *size)
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    before = {plain(name): value for name, value in state.items()}
    in_file = {name.removeprefix("model."): value for name, value in state.items()}  # with lm_head.weight and transformer., if it is transformers'
    write_safetensors(folder / "gpt.safetensors", {**in_file, "h.0.attn.bias": torch.ones(1, 1, tokens, tokens).tril()})
    common = ["--model", folder / "gpt.json", "--data", f"tokens:{folder}/tokens.bin", "--batch-size", BATCH]
    run = lambda *arguments: subprocess.run([sys.argv[1], *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)  # noqa: E731

    run("eval", *common, "--weights", folder / "gpt.safetensors", "--save-logits", folder / "logits.npy")
    with torch.no_grad():
        expected = model(test[:, :-1])
    expect("logits", largest_difference(torch.from_numpy(numpy.load(folder / "logits.npy")).reshape(expected.shape), expected))

    prompt, count = test[0, :3].tolist(), tokens - 3
    sampled = subprocess.run([sys.argv[1], "sample", "--model", folder / "gpt.json", "--weights", folder / "gpt.safetensors", "--prompt-tokens",
                              ",".join(map(str, prompt)), "--tokens", str(count), "--temperature", "0", "--json"], check=True, stdout=subprocess.PIPE)
    assert json.loads(sampled.stdout)["tokens"] == greedy(model, prompt, count), (sampled.stdout, greedy(model, prompt, count))
    print(f"{count} tokens are greedy's")

    mean_loss(model, train[:BATCH]).backward()
    gradients = {plain(name): p.grad.clone() for name, p in model.named_parameters()}
    of_torch, reference = trained_losses(make, size, state, train)
    rate = 2.0**10  # a step of plain SGD shows the gradient: its rounding is that of the parameter
    for mode in modes:
        devices = "cpu:0-1" if mode != "ddp" else "cpu:0"
        start = ["train", *common, "--mode", mode, "--devices", devices, "--init-weights", folder / "gpt.safetensors", "--no-shuffle", "--no-eval",
                 *(["--split", "gpu0=2"] if mode == "balanced" else [])]
        run(*start, "--optimizer", "sgd", "--momentum", 0, "--lr", rate, "--steps", 1, "--save", folder / "after.safetensors")
        after = read_safetensors(folder / "after.safetensors")
        assert set(after) == set(gradients), set(after) ^ set(gradients)
        largest = max(gradient.abs().max().item() for gradient in gradients.values())
        worst = max(((before[name] - value) / rate - gradients[name]).abs().max().item() for name, value in after.items())
        expect(f"gradients of {mode}", worst / largest)

        def adamw(*more):
            run(*start, "--optimizer", "adamw", "--lr", 1e-3, "--steps", STEPS, "--log", folder / "log.jsonl", *more)
            return [row["loss"] for row in map(json.loads, (folder / "log.jsonl").read_text().splitlines()) if row["kind"] == "step"]

        losses = adamw("--save", folder / "trained.safetensors")
        for step, expected in enumerate(of_torch):
            assert math.isclose(losses[step], expected, rel_tol=TOLERANCE), (step, losses[step], expected)
        print(f"losses of {mode}: {losses[0]:.4f} to {losses[STEPS - 1]:.4f}")
        for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)) if mode == modes[0] else ():
            autocast, _ = trained_losses(make, size, state, train, dtype)
            allowed = 2 * max(abs(a - b) for a, b in zip(autocast, of_torch))
            expect(f"losses of {name}", max(abs(a - b) for a, b in zip(adamw("--precision", name), of_torch)), allowed)
    if GPT2LMHeadModel is not None:
        model.model.config.save_pretrained(folder / "saved")
        (folder / "trained.safetensors").rename(folder / "saved" / "model.safetensors")
        loaded = GPT2LMHeadModel.from_pretrained(folder / "saved")
        expect("weights that from_pretrained() loads", largest_difference(loaded.transformer.wte.weight, reference.model.transformer.wte.weight), 1e-3)


if __name__ == "__main__":
    for size in SIZES:
        with tempfile.TemporaryDirectory() as name:
            check(size, pathlib.Path(name), (sys.argv[2] if len(sys.argv) > 2 else "ddp,zero3").split(","))
