#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two hosts as network namespaces of this machine, Open MPI between them: four processes on two hosts train like four on one, and when the network
between them is cut, in one direction or both, the ranks that no longer reach each other are named.

usage: two_hosts_test.py VITRINE MPIRUN      exit status 77: this machine cannot create namespaces (which needs root and ip)
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

VITRINE, MPIRUN = sys.argv[1:3]
NAMES = [f"vitrine-{os.getpid()}-{i}" for i in range(2)]
LINKS = [f"vt{os.getpid() % 10000}e{i}" for i in range(2)]
ADDRESSES = ["10.231.77.1", "10.231.77.2"]
NETWORK = "10.231.77.0/24"
JOB = ["train", "--model", "small-cnn", "--data", "synthetic:500", "--batch-size", "66", "--optimizer", "sgd", "--lr", "0.05", "--seed", "3"]
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PRTE_", "SLURM_"))},
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_WAIT_POLICY": "passive",
}


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def make_hosts():
    if shutil.which("ip") is None:
        skip("there is no ip command; install iproute2")
    for name in NAMES:
        made = ip("netns", "add", name)
        if made.returncode != 0:
            skip(f"no network namespace can be made here: {made.stderr.strip()}")
    entered = ip("netns", "exec", NAMES[0], "true")
    if entered.returncode != 0:  # where / is no mount point, as after a mere chroot
        skip(f"no network namespace can be entered here: {entered.stderr.strip()}")
    made = ip("link", "add", LINKS[0], "netns", NAMES[0], "type", "veth", "peer", "name", LINKS[1], "netns", NAMES[1])
    if made.returncode != 0:
        skip(f"no pair of virtual interfaces can be made here: {made.stderr.strip()}")
    for name, link, address in zip(NAMES, LINKS, ADDRESSES):
        for command in (["addr", "add", f"{address}/24", "dev", link], ["link", "set", link, "up"], ["link", "set", "lo", "up"]):
            subprocess.run(["ip", "netns", "exec", name, "ip", *command], check=True)


def remove_hosts():
    for name in NAMES:
        ip("netns", "del", name)


def on_host(index, command):
    """The command on a host, which also has its own name."""
    return ["ip", "netns", "exec", NAMES[index], "unshare", "--uts", "sh", "-c", f'hostname host{index}; exec "$@"', "sh", *command]


def mpirun(folder, arguments):
    """Two processes on each host; the folder contains a script that replaces ssh."""
    agent = os.path.join(folder, "agent")
    with open(agent, "w") as file:
        file.write("#!/bin/sh\ncase $1 in " + "".join(f"{a}) i={i};; " for i, a in enumerate(ADDRESSES)) + "esac\nshift\n")
        file.write(f'case $i in 0) n={NAMES[0]};; *) n={NAMES[1]};; esac\n')
        file.write('exec ip netns exec $n unshare --uts sh -c "hostname host$i; $*"\n')
    os.chmod(agent, 0o755)
    return on_host(0, [
        MPIRUN, "--mca", "plm_rsh_agent", agent, "--mca", "btl", "tcp,vader,self", "--mca", "btl_tcp_if_include", NETWORK, "--mca", "oob_tcp_if_include",
        NETWORK, "--bind-to", "none", "--map-by", "ppr:2:node", "--oversubscribe", "--host", ",".join(f"{a}:2" for a in ADDRESSES), "-np", "4", VITRINE, *arguments
    ])


def run(command, timeout):
    result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=timeout)
    if result.returncode != 0:
        sys.exit(f"{command} ended with {result.returncode}:\n{result.stdout}\n{result.stderr}")
    return result


def check(condition, message):
    if not condition:
        sys.exit(f"FAILED: {message}")


def trains_as_one_host(folder):
    alone = json.loads(run([VITRINE, *JOB, "--json", "--devices", "cpu:0-3", "--threads-per-device", "1"], 120).stdout)
    result = run(mpirun(folder, [*JOB, "--json", "--threads-per-device", "1", "--verify-replicas", "3", "--trace-level", "off"]), 240)
    together = json.loads(result.stdout)
    check("4 processes on 2 hosts" in result.stderr, f"the log does not mention two hosts:\n{result.stderr}")
    check(len(alone["step_losses"]) == len(together["step_losses"]) == 8, f"{len(together['step_losses'])} steps, expected 8")
    for step, (one, two) in enumerate(zip(alone["step_losses"], together["step_losses"])):
        check(abs(one - two) <= 1e-4 * abs(one), f"step {step}: loss {two} on two hosts, {one} on one")
    check(together["epochs"][0]["test_accuracy"] == alone["epochs"][0]["test_accuracy"], "the test accuracies differ")
    print("four processes on two hosts train as one process does")


def names_who_is_cut_off(folder, how, *cut):
    timeout_s = 3
    command = mpirun(folder, [*JOB, "--epochs", "100000", "--no-eval", "--timeout", str(timeout_s), "--threads-per-device", "1"])
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    output = ""
    while "connected over MPI" not in output:
        line = child.stderr.readline()
        check(line, f"mpirun ended before the processes were connected:\n{output}")
        output += line
    time.sleep(6)  # during training
    check(ip("netns", "exec", NAMES[1], "ip", *cut).returncode == 0, f"ip {' '.join(cut)} failed")
    begin = time.monotonic()
    verdict = ""
    while not verdict:
        line = child.stderr.readline()
        check(line, f"mpirun ended without a verdict:\n{output}")
        output += line
        verdict = line if "rank 2 (" in line or "rank 3 (" in line else ""
    waited = time.monotonic() - begin
    child.terminate()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:  # it may wait for its daemon on the other host
        child.kill()
        child.wait()
    child.stderr.close()
    for pid in subprocess.run(["ip", "netns", "pids", NAMES[1]], capture_output=True, text=True).stdout.split():
        os.kill(int(pid), 9)  # processes that no launcher can reach any more
    check("no messages between rank 0 (" in verdict and "on host1)" in verdict, f"the culprit is not named:\n{output}")
    check(waited < timeout_s + 5, f"the verdict took {waited:.1f} s")
    print(f"with the network cut {how}, after {waited:.1f} s: {verdict.strip()}")


def main():
    try:
        make_hosts()
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
            for module in "vader", "sm":  # in Open MPI 4, in 5
                ENVIRONMENT[f"OMPI_MCA_btl_{module}_backing_directory"] = shared  # what mpirun cannot remove when it is killed
            trains_as_one_host(folder)
            names_who_is_cut_off(folder, "from host 1 to host 0", "route", "add", "blackhole", ADDRESSES[0])
            ip("netns", "exec", NAMES[1], "ip", "route", "del", "blackhole", ADDRESSES[0])
            names_who_is_cut_off(folder, "in both directions", "link", "set", LINKS[1], "down")
    finally:
        remove_hosts()


main()
