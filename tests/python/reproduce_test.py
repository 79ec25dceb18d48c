# SPDX-License-Identifier: Apache-2.0
"""reproduce(): its runs, what interrupts them, and damaged files."""
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

import pytest
import vitrine

TINY = {"model": "mlp", "image_size": 8, "data": "synthetic:195", "threads_per_device": 1, "batch_size": 20, "devices": "cpu:0-1"}
ONE = {**TINY, "modes": ["single"], "precisions": ["fp32"], "epochs": 1}


def reproduce(out, **changes):
    return vitrine.reproduce(out=out, **{**TINY, **changes})


def test_nine_runs_are_made_once_with_all_their_files():
    made = reproduce("nine", epochs=2)
    names = [f"{mode} {precision}" for mode in ("single", "dp", "ddp") for precision in ("fp32", "fp16:none", "fp16:dynamic")]
    assert [run.name for run in made.runs] == names == [configuration.name for configuration in made.configurations]
    for run in made.runs:
        assert run.state == "complete" and len(run.devices) == (1 if run.mode == "single" else 2)
        assert all(device.peak_bytes == device.planned_peak_bytes for device in run.devices)
        assert [(epoch.samples, epoch.steps) for epoch in run.epochs] == [(195, 10), (195, 10)]
        assert run.test_accuracy == run.epochs[1].test_accuracy and run.seconds > 0 and run.samples_per_second > 0 and run.phases
        assert sorted(os.listdir(run.folder)) == ["checkpoints", "log.jsonl", "result.json", "tensorboard"]
        assert len([name for name in os.listdir(run.folder + "/checkpoints") if name.startswith("step-")]) == 2
    written = os.stat("nine/ddp-fp32/log.jsonl").st_mtime_ns
    assert reproduce("nine", epochs=2) == made
    assert os.stat("nine/ddp-fp32/log.jsonl").st_mtime_ns == written
    with open("nine/runs.json", encoding="utf-8") as file:
        assert json.load(file) == made
    page = pathlib.Path("nine/report.html").read_text(encoding="utf-8")
    assert 'data-chart="curves"' in page and made._repr_html_() == vitrine._display.frame(page)
    record = json.loads(page.partition('id="record">')[2].partition("</script>")[0])["record"]
    assert list(record["modes"]) == names and all(len(run["epochs"]) == 2 for run in record["modes"].values())
    if shutil.which("chromium"):
        show = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", pathlib.Path("nine/report.html").resolve().as_uri()]
        drawn = subprocess.run(show, capture_output=True, text=True, check=False, timeout=120).stdout
        for name in names:
            assert drawn.count(f">{name}, at the end ") == 2, f"a curve of losses and one of accuracies: {name}"


def test_an_interrupted_call_continues_with_the_same_bits():
    one = {**ONE, "modes": ["ddp"], "epochs": 30}
    log = pathlib.Path("stopped/ddp-fp32/log.jsonl")

    def interrupt():
        while not log.exists() or '"kind":"epoch"' not in log.read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        vitrine.reproduce(out="stopped", **one)
    with open("stopped/runs.json", encoding="utf-8") as file:
        before = json.load(file)
    assert before["interrupted"] and before["runs"][0]["state"] == "interrupted"
    run = vitrine.reproduce(out="stopped", **one).runs[0]
    assert run.state == "complete" and [epoch.steps for epoch in run.epochs] == [10] * 30
    vitrine.reproduce(out="whole", **one)
    weights = "ddp-fp32/checkpoints/step-00000300/model.safetensors"
    assert pathlib.Path("stopped", weights).read_bytes() == pathlib.Path("whole", weights).read_bytes()


def test_a_folder_whose_name_is_no_text():
    out = os.fsdecode(b"runs\xa4")
    made = vitrine.reproduce(out=out, **ONE)
    assert made.runs[0].state == "complete" and vitrine.reproduce(out=out, **ONE) == made and os.path.getsize(out + "/report.html") > 50_000


def test_a_call_that_trains_no_step_measures_nothing():
    """As after a kill between the last checkpoint and the result."""
    whole = vitrine.reproduce(out="trained", **ONE).runs[0]
    result = pathlib.Path("trained/single-fp32/result.json")
    result.write_text(json.dumps({**json.loads(result.read_text()), "state": "interrupted"}))
    run = vitrine.reproduce(out="trained", **ONE).runs[0]
    assert run.state == "complete" and run.epochs == whole.epochs and whole.devices[0].peak_bytes > 0
    assert run.devices[0].peak_bytes is None and run.devices[0].outside_bytes is None
    assert run.devices[0].planned_peak_bytes == whole.devices[0].planned_peak_bytes
    assert vitrine.reproduce(out="trained", **ONE).runs[0] == run


def test_what_would_fit_names_arguments_of_reproduce():
    small = {"model": "lenet5", "image_size": 12, "data": "synthetic:40", "threads_per_device": 1, "batch_size": 20, "workspace": "1MiB",
             "precisions": ["fp32"], "epochs": 1, "devices": "cpu:0-1"}
    dp, ddp = (run.devices[0].planned_peak_bytes for run in vitrine.reproduce(out="fits", modes="dp,ddp", **small).runs)
    failure = vitrine.reproduce(out="small", modes="dp", device_memory=(dp + ddp) // 2, **small).runs[0].failure
    assert "What would fit: --modes ddp" in failure and "--batch-size" in failure and "--mode " not in failure


def test_another_configuration_in_the_same_folder_is_refused():
    vitrine.reproduce(out="settings", **ONE)
    for changes, reason in (({"lr": 0.5}, "lr is 0.5, there 0.0001"), ({"limit_samples": 100}, "limit_samples is 100, there not set"),
                            ({"data": "synthetic:200"}, "data is synthetic:200, there synthetic:195"), ({"epochs": 2}, "epochs is 2, there 1")):
        with pytest.raises(vitrine.UsageError, match=reason):
            vitrine.reproduce(out="settings", **{**ONE, **changes})
    assert vitrine.reproduce(out="settings", **ONE, workers=2).runs[0].state == "complete"


def test_one_call_at_a_time_works_in_a_folder():
    os.makedirs("busy")
    with open("busy/.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(vitrine.Error, match="out busy: another process works there"):
            vitrine.reproduce(out="busy", **ONE)
    os.remove("busy/.lock")
    os.symlink("elsewhere", "busy/.lock")
    with pytest.raises(vitrine.Error, match="cannot be locked"):
        vitrine.reproduce(out="busy", **ONE)
    assert os.listdir("busy") == [".lock"] and not os.path.exists("elsewhere")


@pytest.mark.parametrize(("changes", "reason"), [
    ({"modes": ["single", "both"]}, "modes: expected single, dp, criterion, ddp, zero1, zero2, zero3, got 'both'"),
    ({"modes": ["dp", "dp"]}, "dp appears twice"), ({"precisions": ["fp16", "fp16:dynamic"]}, "fp16 is fp16:dynamic"),
    ({"precisions": ["fp64"]}, "'fp64'"), ({"mode": "dp"}, "reproduce sets mode for each run"),
    ({"as_published": True}, "devices cpu:0-1 has 2"), ({"as_published": True, "devices": "cpu:0", "classes": 20}, "as_published sets classes"),
    ({"as_published": True, "devices": "cpu:0", "shuffle": True}, "as_published sets shuffle")])
def test_what_makes_no_sense_is_refused(changes, reason):
    with pytest.raises(vitrine.UsageError, match=reason):
        reproduce("x", **changes)
    assert not os.path.exists("x")


def test_published_figures_and_what_differs_from_their_conditions():
    made = reproduce("published", as_published=True, devices="cpu:0", epochs=1, limit_samples=100, modes=["single", "ddp"], momentum=None)
    published = {configuration.name: configuration.published for configuration in made.configurations}
    assert published["single fp16:none"] == {"test_accuracy": 0.8403, "minutes": 21}
    assert published["single fp16:dynamic"] == {"test_accuracy": None, "minutes": 27} and published["ddp fp32"].test_accuracy == 0.8224
    for part in ("model mlp; published: alexnet", "epochs 1; published: 20", "limit_samples 100; published: not set", "published: CIFAR-10", "an RTX 2060"):
        assert any(part in departure for departure in made.departures), part
    assert len(made.departures) == 7, made.departures
    assert made.runs[0].config.classes == 1000 and made.runs[0].config.normalize == "none" and not made.runs[0].config.shuffle
    assert any("1000 outputs" in condition for condition in made.published_conditions)
    # Without shuffling the single device and ddp train on the same batches, here on one device: the same figures.
    assert made.runs[0].epochs[0].train_loss == made.runs[3].epochs[0].train_loss


def test_every_departure_from_the_published_conditions_is_listed():
    changed = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.05, "clip_norm": 1, "drop_last": True, "augment": "flip", "ema": 0.9,
               "label_smoothing": 0.1, "param_group": "*.bias:lr=0.02", "lr_factor": 0.5, "lr_patience": 7, "warmup_steps": 2, "seed": 3}
    made = vitrine.reproduce(out="departures", as_published=True, **{**ONE, "devices": "cpu:0"}, **changed)
    for part in ("optimizer sgd; published: adamw", "momentum 0.9; published: not set", "weight_decay 0.05; published: 0.01", "clip_norm 1",
                 "drop_last True; published: False", "augment flip; published: not set", "ema 0.9; published: not set", "label_smoothing 0.1; published: 0",
                 "param_groups ", "lr_factor 0.5; published: not set", "lr_patience 7; published: 3", "warmup_steps 2; published: not set"):
        assert any(departure.startswith(part) for departure in made.departures), part
    assert not any(word in departure for departure in made.departures for word in ("seed", "betas", "nesterov"))


def test_runs_that_diverge_or_fail_do_not_stop_the_others():
    wild = {**TINY, "modes": ["single", "dp"], "precisions": ["fp16:none", "fp32"], "epochs": 2, "lr": 100}
    os.makedirs("wild/dp-fp32")
    pathlib.Path("wild/dp-fp32/checkpoints").write_text("in the way")
    made = vitrine.reproduce(out="wild", **wild)
    assert [run.state for run in made.runs] == ["diverged", "complete", "diverged", "failed"]
    assert made.runs[0].diverged and "checkpoints" in made.runs[3].failure and made.configurations[0].test_accuracy is None
    os.remove("wild/dp-fp32/checkpoints")
    assert [run.state for run in vitrine.reproduce(out="wild", **wild).runs] == ["diverged", "complete", "diverged", "complete"]


def test_the_spread_of_seeds():
    vitrine.reproduce(out="seeds", **ONE, seed=5)
    made = vitrine.reproduce(out="seeds", **ONE, seed=5, seeds=3)
    assert [run.folder for run in made.runs] == ["seeds/single-fp32", "seeds/single-fp32-seed6", "seeds/single-fp32-seed7"]
    assert made.runs[2].name == "single fp32 seed 7"
    (configuration,) = made.configurations
    assert configuration.complete_runs == 3 and configuration.seconds.deviation is not None
    assert configuration.test_accuracy.mean == pytest.approx(sum(run.test_accuracy for run in made.runs) / 3)
    assert made.runs[0].epochs[0].train_loss != made.runs[1].epochs[0].train_loss


def test_a_damaged_result_or_log_fails_its_run_alone():
    two = {**TINY, "modes": ["single", "ddp"], "precisions": ["fp32"], "epochs": 2}
    whole = vitrine.reproduce(out="damaged", **two)
    folder = pathlib.Path("damaged/single-fp32")
    result, log = ((folder / name).read_text() for name in ("result.json", "log.jsonl"))
    epoch = log.index('{"kind":"epoch"')
    line = log.count("\n", 0, epoch) + 1
    for name, text, reason in (("result.json", "{", "result.json: it is damaged"), ("result.json", "{}", "result.json: it is damaged"),
                               ("result.json", "[" * 100000, "result.json: it is damaged"), ("result.json", '"\udca4', "result.json: it is damaged"),
                               ("result.json", json.dumps({**json.loads(result), "result": None}), "result.json: it is damaged"),
                               ("log.jsonl", log[:epoch] + "???" + log[epoch + 3:], f"log.jsonl, line {line}: it is damaged"),
                               ("log.jsonl", "[" * 100000 + "\n", "log.jsonl, line 1: it is damaged"),
                               ("log.jsonl", log[:epoch], "log.jsonl: it has 0 of 2 epochs")):
        before = {"result.json": result, "log.jsonl": log}[name]
        (folder / name).write_text(text, errors="surrogateescape")
        made = vitrine.reproduce(out="damaged", **two)
        assert made.runs[0].state == "failed" and reason in made.runs[0].failure and "remove the run's folder" in made.runs[0].failure
        assert made.runs[1] == whole.runs[1]
        (folder / name).write_text(before)
    # A process that is killed may leave half a row, and a checkpoint that is not whole.
    (folder / "result.json").write_text(json.dumps({**json.loads(result), "state": "interrupted"}))
    with open(folder / "log.jsonl", "a", encoding="utf-8") as file:
        file.write('{"kind":"st')
    with open(folder / "checkpoints/step-00000020/model.safetensors", "a", encoding="utf-8") as file:
        file.write("x")
    run = vitrine.reproduce(out="damaged", **two).runs[0]
    assert run.state == "complete" and run.epochs[1].train_loss == whole.runs[0].epochs[1].train_loss and run.test_accuracy == whole.runs[0].test_accuracy
