# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of tools/gpu_check within their time, and reads what they print."""
import collections
import json
import os
import re
import signal
import subprocess
import time

# A test that prints nothing for so long hangs.
QUIET_SECONDS = 25
# Texts of CUDA errors after which every further call of the process fails (CUDA's documentation of cudaError).
STICKY = re.compile(r"illegal memory access|misaligned address|unspecified launch failure|device-side assert|illegal instruction|illegal address|invalid program counter|"
                    r"hardware stack error|launch timed out|uncorrectable ECC", re.I)

# What is turned off to locate a defect: each by itself, in this order.
SWITCHES = ("VITRINE_OVERLAP_LAUNCHES=off", "VITRINE_CUDA_GRAPHS=off", "VITRINE_CUDNN=off", "CUDA_LAUNCH_BLOCKING=1")

# status: the exit status, or "timed out", "hung" or "missing". silent: seconds without output at the end.
Run = collections.namedtuple("Run", "status text seconds silent")


class Work:
    """Runs commands in `root` within a deadline and keeps their logs."""

    def __init__(self, root, logs):
        self.root = root
        self.logs = logs
        self.deadline = None
        os.makedirs(logs, exist_ok=True)

    def left(self):
        return max(0.0, self.deadline - time.monotonic())

    def run(self, name, command, seconds=None, environment=None, quiet_seconds=None):
        """What the command started is killed with it."""
        begin = time.monotonic()
        end = begin + max(0.1, self.left() if seconds is None else min(seconds, self.left()))
        log = os.path.join(self.logs, name + ".log")
        with open(log, "wb") as file:
            try:
                process = subprocess.Popen(command, cwd=self.root, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})}, start_new_session=True)
            except OSError as problem:
                return Run("missing", str(problem), 0.0, 0.0)
            try:
                status = None
                while status is None:
                    try:
                        status = process.wait(timeout=max(0.01, min(0.2, end - time.monotonic())))
                    except subprocess.TimeoutExpired:
                        silent = max(0.0, time.time() - os.path.getmtime(log))
                        if time.monotonic() >= end:
                            status = "timed out"
                        elif quiet_seconds is not None and silent > quiet_seconds:
                            status = "hung"
                silent = max(0.0, time.time() - os.path.getmtime(log))
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
        with open(log, encoding="utf-8", errors="replace") as file:
            return Run(status, file.read(), round(time.monotonic() - begin, 1), round(silent, 1))


def parse_gtest(text):
    """{test: "passed" | "failed" | "skipped" | "unfinished"} in the order in which they ran, and the output of each."""
    outcome, output, running = {}, {}, None
    for line in text.splitlines():
        match = re.match(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^\s(,]+)", line)
        if match and match.group(1) == "RUN":
            running = match.group(2)
            outcome[running], output[running] = "unfinished", []
        elif match and match.group(2) == running:
            outcome[running] = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[match.group(1)]
            running = None
        elif running:
            output[running].append(line)
    return outcome, {test: "\n".join(lines) for test, lines in output.items()}


def list_tests(path, environment, chosen="*"):
    """Names of a program's tests that match a filter; empty if it does not say."""
    try:
        run = subprocess.run([path, "--gtest_list_tests", f"--gtest_filter={chosen}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True, timeout=5,
                             env={**os.environ, **environment}, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    suite, tests = None, []
    for line in run.stdout.splitlines() if run.returncode == 0 else []:
        name = line.split("#")[0].rstrip()
        if re.fullmatch(r"[\w/]+\.", name):
            suite = name
        elif suite and re.fullmatch(r"  \S+", name):
            tests.append(suite + name.strip())
    return tests


def last_lines(text, count=5):
    return "\n".join(text.splitlines()[-count:])


def run_tests(work, program, path, seconds, environment, quiet_seconds=QUIET_SECONDS, chosen="*"):
    """Runs the tests of one program that match a gtest filter; again without those that are done, after a crash, a hang or an error that spoils the GPU's context.

    `ok`: nothing failed. `incomplete`, if there: why tests were not reached, which `not_reached` names where the program lists them.
    """
    begin = time.monotonic()
    done, failed, note, incomplete, attempt = {}, {}, None, None, -1
    stop = min(work.deadline, begin + seconds)
    for attempt in range(30):
        flags = os.path.join(work.logs, f"{program}.flags")
        with open(flags, "w", encoding="utf-8") as file:
            file.write(f"--gtest_filter={chosen}" + ("-" + ":".join(done) if done else "") + "\n")
        json_file = os.path.join(work.logs, f"{program}.{attempt}.json")
        left = stop - time.monotonic()
        if left < 1:
            incomplete = "out of time"
            break
        run = work.run(f"{program}.{attempt}", [path, f"--gtest_flagfile={flags}", f"--gtest_output=json:{json_file}"], left, environment, quiet_seconds)
        if run.status == "missing":
            note = run.text
            break
        outcome, output = parse_gtest(run.text)
        again = False
        for test, verdict in outcome.items():
            if verdict == "unfinished":
                # Stopped while it worked: that says nothing of the test. One that was silent for most of the time hangs, unless it may be.
                if run.status == "timed out" and run.silent < (quiet_seconds if quiet_seconds > seconds else 0.5 * left):
                    incomplete = f"out of time while {test} ran, for {run.silent} s"
                    break
                hung = run.status in ("timed out", "hung")
                verdict = f"hung: no output for {run.silent} s" if hung else f"ended the program ({run.status})"
                again = True
            done[test] = verdict
            if verdict not in ("passed", "skipped"):
                failed[test] = {"verdict": verdict, "output": output[test][-2000:]}
            if verdict == "failed" and STICKY.search(output[test]):
                again = True
                break
        if incomplete:
            break
        if not again:
            if run.status in ("timed out", "hung"):
                note = f"{run.status} between tests, after {run.silent} s without output: " + last_lines(run.text)
            elif run.status != 0 and not any(verdict == "failed" for verdict in outcome.values()):
                note = f"the program ended with {run.status}: " + last_lines(run.text)
            elif not outcome and not done:
                note = "no test ran: " + last_lines(run.text)
            break
    else:
        note = f"ended {attempt + 1} times before its last test"
    verdicts = list(done.values())
    if note is None and verdicts and set(verdicts) == {"skipped"}:
        note = "every test was skipped: " + last_lines(run.text)
    result = {"ok": not failed and note is None, "passed": verdicts.count("passed"), "skipped": verdicts.count("skipped"), "failed": failed, "processes": attempt + 1,
              "seconds": round(time.monotonic() - begin, 1)}
    if note:
        result["note"] = note
    if incomplete:
        result["incomplete"] = incomplete
        result["not_reached"] = [test for test in list_tests(path, environment, chosen) if test not in done]
    return result


def switches_of(choice, gpus):
    """Those of SWITCHES that say something. NCCL hangs when the launches of several GPUs in one process block (NVIDIA/nccl#750)."""
    return tuple(switch for switch in SWITCHES if gpus < 2 or choice != "cuda" or switch != "CUDA_LAUNCH_BLOCKING=1")


def find_switch(work, path, test, environment, switches, seconds=20):
    """With what a failed test passes: "alone", "with" one of the switches, or "with none of" those that there was time for."""
    tried = []
    for switch in ("", *switches):
        if work.left() < 1:
            break
        name, _, value = switch.partition("=")
        run = work.run("again-" + re.sub(r"\W+", "_", f"{test}-{switch}"), [path, f"--gtest_filter={test}"], seconds, {**environment, **({name: value} if name else {})}, QUIET_SECONDS)
        if run.status == 0 and parse_gtest(run.text)[0].get(test) == "passed":
            return f"with {switch}" if switch else "alone"
        tried.append(switch or "no switch")
    return "with none of: " + ", ".join(tried)


def read_kernels(path):
    """[{operation, calls, microseconds, gb_per_s}] of the spans of operations in a trace, the longest first."""
    sums = collections.defaultdict(lambda: [0, 0.0, 0])
    with open(path, encoding="utf-8") as file:
        for event in json.load(file)["traceEvents"]:
            if event.get("ph") == "X" and event["args"].get("operation"):
                entry = sums[" ".join(filter(None, (event["args"].get("layer"), event["args"]["operation"])))]
                entry[:] = [a + b for a, b in zip(entry, (1, event["dur"], event["args"].get("bytes", 0)))]
    rows = [{"operation": name, "calls": calls, "microseconds": round(us, 1), "gb_per_s": round(moved / us / 1e3, 1) if us > 0 else 0} for name, (calls, us, moved) in sums.items()]
    return sorted(rows, key=lambda row: -row["microseconds"])


def read_memcheck(run):
    """What compute-sanitizer and the tests that it ran printed, also if they were stopped."""
    outcome, _ = parse_gtest(run.text)
    summary = re.findall(r"ERROR SUMMARY: (\d+) error", run.text)
    # Without the summary, the reports are counted: each begins with one blank, its details with more.
    heads = re.findall(r"(?m)^========= (?!COMPUTE-SANITIZER|ERROR SUMMARY|Target application|Error: process|Warning|\s)\S.*$", run.text)
    found = "\n".join(line for line in run.text.splitlines() if line.startswith("========="))
    verdicts = list(outcome.values())
    result = {"status": run.status, "seconds": run.seconds, "errors": int(summary[-1]) if summary else len(heads), "reports": found[:4000],
              "passed": verdicts.count("passed"), "skipped": verdicts.count("skipped"), "failed": [test for test, verdict in outcome.items() if verdict == "failed"]}
    running = [test for test, verdict in outcome.items() if verdict == "unfinished"]
    if run.status in ("timed out", "hung"):
        result["incomplete"] = "out of time" + (f" while {running[0]} ran, for {run.silent} s" if running else "")
    elif running:
        result["failed"] += running
    # Every test that ended counts, of a program that was stopped, too.
    result["ok"] = result["errors"] == 0 and not result["failed"] and result["passed"] > 0 and (run.status == 0 and bool(summary) or "incomplete" in result)
    if run.status == "missing":
        result["note"] = run.text
    elif not result["ok"] and result["errors"] == 0 and not result["failed"]:
        result["note"] = last_lines(run.text)
    return result


def read_rows(path):
    """Rows of Google Benchmark's JSON, also of a file whose end is missing."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return [], False
    try:
        return json.loads(text)["benchmarks"], True
    except ValueError:
        pass
    start = text.find('"benchmarks"')
    end = text.rfind("\n    }")
    if start < 0 or end < start:
        return [], False
    try:
        return json.loads("{" + text[start:end] + "\n    }]}")["benchmarks"], False
    except ValueError:
        return [], False


def values_at(node, path):
    """Numbers of a report: of each list along the path, those rows count in whose name or operation the path's regular expression is found."""
    if not path:
        return [node] if isinstance(node, (int, float)) else []
    if isinstance(node, list):
        rows = [row for row in node if isinstance(row, dict) and re.search(path[0], str(row.get("name") or row.get("operation")))]
        return [value for row in rows for value in values_at(row, path[1:])]
    return values_at(node[path[0]], path[1:]) if isinstance(node, dict) and path[0] in node else []


def judge(report, estimates):
    """The estimates with what was measured of each (the least and the largest value) and the verdict."""
    judged = []
    for estimate in estimates:
        values, (low, high) = values_at(report, estimate["value"]), estimate["range"]
        verdict = "not measured" if not values else "right" if low <= min(values) and max(values) <= high else "WRONG"
        judged.append({**estimate, "measured": [min(values), max(values)] if values else None, "verdict": verdict})
    return judged


def read_estimates(path):
    """throws ValueError for a file that is no list of {estimate, value, range}, OSError"""
    with open(path, encoding="utf-8") as file:
        estimates = json.load(file)
    for entry in estimates if isinstance(estimates, list) else [None]:
        valid = isinstance(entry, dict) and set(entry) == {"estimate", "value", "range"} and isinstance(entry["range"], list) and len(entry["range"]) == 2
        if not valid or not all(isinstance(bound, (int, float)) for bound in entry["range"]) or not all(isinstance(name, str) for name in entry["value"]):
            raise ValueError(f"{path}: expected a list of {{estimate, value: [key or pattern of a row, ...], range: [least, most]}}, got {str(entry)[:80]}")
    return estimates


def output_of(command, pattern=r"(.*)", seconds=20, environment=None):
    """The first group of the pattern in what a command prints, None if it is not there or the command does not end."""
    try:
        text = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace", timeout=seconds,
                              env={**os.environ, **(environment or {})}, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(pattern, text)
    return match.group(1).strip() if match else None
