# SPDX-License-Identifier: Apache-2.0
"""The commands from Python: arguments, values, errors and interrupts are the program's."""
import doctest
import inspect
import json
import os
import pathlib
import pickle
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
import vitrine
from vitrine import _program

DRAWS = int(os.environ.get("VITRINE_DRAWN_CALLS", "10"))
# Times, speeds, and what depends on them or on the memory that other processes use.
MEASURED = {"seconds", "samples_per_second", "samples_per_second_of_rounds", "share", "hidden_seconds", "exposed_seconds", "late_hidden_seconds",
            "late_exposed_seconds", "algbw", "busbw", "avg_busbw", "time_us", "min_us", "median_us", "p99_us", "outside_bytes",
            "outside_bytes_by_owner", "capacity_bytes", "speed", "added_seconds", "added_time", "phases", "waits", "remedies"}


def program(*words):
    return subprocess.run([_program.PROGRAM, *words], capture_output=True, text=True, check=False)


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in MEASURED}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def draw(rng):
    """A call: command, arguments, and the same as words, written down here apart from the package."""
    command = rng.choice(["plan", "plan", "plan", "train", "compare", "collectives", "verify"])
    devices = rng.choice(["cpu:0", "cpu:0-1", ["cpu:0", "cpu:1"]])
    if command == "collectives":
        name, size = rng.choice(["all_reduce", "broadcast", "all_gather"]), rng.choice(["1K", "4K"])
        values = {"devices": "cpu:0-1", "minbytes": size, "maxbytes": size, "iters": 1}
        return command, ([name], values), [name, "--devices", "cpu:0-1", "--minbytes", size, "--maxbytes", size, "--iters", "1"]
    values = {"model": rng.choice(["mlp", "lenet5", "small-cnn"]), "data": "synthetic:64", "batch_size": rng.choice([8, 16]), "devices": devices,
              "seed": rng.randrange(1000)}
    if command == "verify":
        runs = [{**values, "steps": 2, "exact": True, "seed": rng.choice([1, 2])} for _ in range(2)]
        words = [" ".join(words_of(run)) for run in runs]
        return command, (runs, {}), ["--a=" + words[0], "--b=" + words[1]]
    if command == "compare":
        values.update(modes=rng.choice([["ddp"], ["dp", "ddp"], "dp,zero3"]), steps=2, rounds=1)
    else:
        values.update(mode=rng.choice(["dp", "ddp", "zero1", "zero2", "zero3"]), optimizer=rng.choice(["sgd", "adam"]),
                      steps=rng.choice([1, 3]), no_eval=rng.random() < 0.5, shuffle=rng.random() < 0.5, clip_norm=rng.choice([None, 0.5]),
                      param_group=["*.bias:lr=0.1", "*.weight:weight-decay=0.5"])
    if command == "plan" and rng.random() < 0.7:
        values.update(devices="cuda:0-3", device_memory=rng.choice(["1MiB", "4GiB"]), model=rng.choice(["mlp", "resnet18-cifar"]))
    return command, ([], values), words_of(values)


def words_of(values):
    words = []
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if name == "param_group":
            for item in value:
                words += [flag, item]
        elif value is True:
            words += [flag]
        elif value is False:
            words += ["--no-shuffle"] if name == "shuffle" else []
        elif value is not None:
            words += [flag, ",".join(value) if isinstance(value, list) else str(value)]
    return words


@pytest.mark.parametrize("number", range(DRAWS))
def test_every_number_of_a_drawn_call_is_the_programs(number):
    command, (positional, values), words = draw(random.Random(number))
    result = getattr(vitrine, command)(*positional, **values)
    if command == "train":
        steps = [step.loss for step in result]
        result = result.result
        assert steps == result.step_losses
    printed = program(command, *words, "--json")
    assert printed.returncode in (0, 1), printed.stderr
    assert without_times(json.loads(printed.stdout)) == without_times(result), (command, words)


def test_examples_of_all_public_names():
    without = []
    for name in vitrine.__all__:
        value = getattr(vitrine, name)
        assert (value.__doc__ or "").strip(), name
        if name in ("Engine", "Step", "Memory", "explain") and not any(_program.FOLDER.glob("_vitrine*.so")):
            continue
        examples = 0
        for test in doctest.DocTestFinder(recurse=False).find(value, name, globs={"vitrine": vitrine, "Values": vitrine.Values}):
            assert doctest.DocTestRunner().run(test).failed == 0
            examples += len(test.examples)
        if not examples:
            without.append(name)
    assert set(without) <= {"Error", "UsageError", "Explanation", "Reproduction", "export", "memory_viz", "reproduce", "__version__"}


def test_arguments_are_the_flags_of_the_program():
    names = set(inspect.signature(vitrine.plan).parameters)
    help_text = program("plan", "--help").stdout
    assert {"model", "no_eval", "accumulate", "devices"} <= names and "json" not in names
    for name in names - {"help"}:
        assert "--" + name.replace("_", "-") in help_text or "--" + name in help_text, name
    assert "samples of one optimizer step" in vitrine.plan.__doc__.lower()


def test_errors_have_the_programs_sentence():
    with pytest.raises(vitrine.UsageError, match="^there is no option --batch-sze; did you mean --batch-size"):
        vitrine.plan(batch_sze=3)
    with pytest.raises(vitrine.UsageError, match="^--mode: expected dp"):
        vitrine.train(mode="ddq").result
    with pytest.raises(vitrine.Error, match="^cuda:0: ") as caught:
        vitrine.train(devices="cuda:0").result
    assert not isinstance(caught.value, vitrine.UsageError)
    with pytest.raises(vitrine.Error) as caught:
        list(vitrine.train(model="mlp", data="synthetic:64", optimizer="sgd", lr=1e30, steps=9, no_eval=True))
    assert caught.value.result.diverged
    with pytest.warns(UserWarning, match="^--batch-size 64: the training set has 40 images, so every step has 40 samples"):
        vitrine.train(model="mlp", data="synthetic:40", steps=1, no_eval=True).result


def test_a_plan_that_does_not_fit_is_a_value():
    plan = vitrine.plan(model="resnet50", devices="cuda:0-7", device_memory="4GiB", batch_size=512, mode="dp")
    assert not plan.fits and "--batch-size" in plan.remedies
    assert plan.peak == plan.devices[0].peak_bytes > 4 << 30
    assert sum(plan.devices[0].by_category.values()) == plan.peak
    assert plan.command == "vitrine plan --model resnet50 --devices cuda:0-7 --device-memory 4GiB --batch-size 512 --mode dp"
    assert "data-chart=\"peaks\"" in _unescaped(plan._repr_html_())


def _unescaped(text):
    return text.replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">")


def test_tables():
    pytest.importorskip("pandas")
    plan = vitrine.plan(model="mlp", devices="cpu:0-1").to_pandas()
    assert list(plan.device) == ["cpu:0", "cpu:1"] and plan.activations.sum() > 0
    comparison = vitrine.compare(model="mlp", data="synthetic:64", devices="cpu:0-1", modes=["dp", "ddp"], steps=2, rounds=1)
    assert list(comparison.to_pandas()["mode"]) == ["dp", "ddp"]
    assert len(vitrine.train(model="mlp", data="synthetic:256", steps=3).result.to_pandas()) == 3


def interrupt_in(seconds):
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_an_interrupt_saves_a_checkpoint_and_gives_the_values_so_far():
    run = vitrine.train(model="mlp", data="synthetic:64", steps=10_000_000, checkpoint_dir="checkpoints", keep_last=2,
                        no_eval=True)
    with pytest.raises(KeyboardInterrupt):
        for step in run:
            interrupt_in(0)
            time.sleep(5)
    assert run.result.interrupted and run.result.checkpoints.saved >= 1  # and after each epoch
    assert os.path.exists(f"checkpoints/{run.result.checkpoints.newest}/model.safetensors")
    with pytest.raises(KeyboardInterrupt):
        interrupt_in(1)
        vitrine.compare(model="mlp", steps=10_000_000)


def test_memory_viz_writes_what_pytorchs_readers_read():
    vitrine.train(model="mlp", data="synthetic:16", batch_size=4, steps=2, record_steps="1-2", memory_history="recorded.json", no_eval=True).result
    assert vitrine.memory_viz("recorded.json") == "recorded.pickle"
    with open("recorded.json", encoding="utf-8") as file, open("recorded.pickle", "rb") as pickled:
        content = pickled.read()
        assert pickle.loads(content) == json.load(file)
    assert content[:2] == b"\x80\x04"
    viz = pytest.importorskip("torch.cuda._memory_viz")
    if not hasattr(viz, "trace"):
        pytest.skip("this PyTorch is older than 2.0")
    assert "Device 0" in viz.trace(pickle.loads(content)) and viz.segsum(pickle.loads(content))


def test_a_run_that_is_left_ends():
    with vitrine.train(model="mlp", steps=10_000_000, no_eval=True) as run:
        assert next(iter(run)).step == 1
    assert run._process.popen.returncode == 130
    run = vitrine.train(model="mlp", steps=10_000_000, no_eval=True)
    for _ in run:
        break  # stops it
    assert run.result.interrupted


def test_a_run_of_a_killed_python_saves_a_checkpoint_and_ends():
    starts = ("import time, vitrine; run = vitrine.train(model='mlp', data='synthetic:64', steps=10_000_000, checkpoint_dir='killed', no_eval=True);"
              "steps = iter(run); next(steps); print(run._process.popen.pid, flush=True); time.sleep(600)")
    with subprocess.Popen([sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True) as python:
        pid = int(python.stdout.readline())
        begin = time.time()
        python.kill()
    program_state = pathlib.Path(f"/proc/{pid}/stat")
    while program_state.exists() and program_state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.time() < begin + 60, "the program goes on"
        time.sleep(0.05)
    assert any(os.path.getmtime(folder) >= begin - 1 for folder in pathlib.Path("killed").glob("step-*")), "it has saved a checkpoint"


def test_a_run_outlives_the_thread_that_started_it():
    runs = []
    thread = threading.Thread(target=lambda: runs.append(vitrine.train(model="mlp", data="synthetic:64", steps=10_000_000, no_eval=True)))
    thread.start()
    thread.join()
    steps = iter(runs[0])
    assert [next(steps).step for _ in range(2)] == [1, 2]
    assert runs[0].stop().interrupted and runs[0]._process.popen.returncode == 130


def test_the_types_are_right():
    pytest.importorskip("mypy")
    root = pathlib.Path(__file__).parents[2] / "tools" / "python"
    checked = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "vitrine"], cwd=root, capture_output=True, text=True, check=False,
                             env={**os.environ, "MYPYPATH": str(root), "MYPY_CACHE_DIR": os.path.abspath("mypy")})
    assert checked.returncode == 0, checked.stdout
