#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/get_data against a local server: whole files, a broken connection that is continued, wrong checksums, missing
or damaged files, calls that are killed.

usage: get_data_test.py GET_DATA
"""
import gzip
import hashlib
import http.server
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import threading

GET_DATA = sys.argv[1]
FASHION = [f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
CIFAR = "cifar-10-binary.tar.gz"
BATCH_BYTES = 3073  # one image a file
MEMBERS = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin", "batches.meta.txt"]


def make_archive(members, inner="cifar-10-batches-bin"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in members:
            info = tarfile.TarInfo(f"{inner}/{name}" if "/" not in name else name)
            data = os.urandom(BATCH_BYTES)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


class Server:
    """Serves `files`; what it was asked is in `requests`: (path, range)."""

    def __init__(self, files):
        self.files, self.requests, self.cut_after, self.ranges, self.broken_chunk = files, [], None, True, False
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.lstrip("/")
                wanted = self.headers.get("Range")
                outer.requests.append((name, wanted))
                if name not in outer.files:
                    return self.send_error(404)
                if outer.broken_chunk:
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    return self.wfile.write(b"1000\r\nfewer bytes than it says")
                data, begin = outer.files[name], 0
                if wanted and outer.ranges:
                    begin = int(wanted[len("bytes="):].rstrip("-"))
                    if begin >= len(data):
                        return self.send_error(416)
                self.send_response(206 if begin else 200)
                self.send_header("Content-Length", str(len(data) - begin))
                self.end_headers()
                end = len(data) if outer.cut_after is None else min(len(data), begin + outer.cut_after)
                self.wfile.write(data[begin:end])

            def log_message(self, *arguments):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def run(self, *arguments, md5=None, batch_bytes=BATCH_BYTES):
        sums = md5 if md5 is not None else {name: hashlib.md5(data).hexdigest() for name, data in self.files.items()}
        environment = dict(os.environ, VITRINE_GET_DATA_URL=self.url, VITRINE_GET_DATA_MD5=" ".join(f"{k}={v}" for k, v in sums.items()))
        if batch_bytes:
            environment["VITRINE_GET_DATA_BATCH_BYTES"] = str(batch_bytes)
        for proxy in ("http_proxy", "HTTP_PROXY"):
            environment.pop(proxy, None)
        return subprocess.run([sys.executable, GET_DATA, *arguments], env=environment, capture_output=True, text=True, check=False)


def content(path):
    with open(path, "rb") as file:
        return file.read()


def test_fashion_mnist(folder):
    server = Server({name: gzip.compress(os.urandom(5000)) for name in FASHION})
    target = os.path.join(folder, "new", "fashion")
    found = server.run("fashion-mnist", target)
    assert found.returncode == 0, found.stderr
    assert sorted(os.listdir(target)) == sorted(FASHION), os.listdir(target)
    assert all(content(os.path.join(target, name)) == server.files[name] for name in FASHION)
    assert f"fashion-mnist:{target}" in found.stdout
    server.requests.clear()
    assert server.run("fashion-mnist", target).returncode == 0 and not server.requests, "nothing is left to fetch"
    with open(os.path.join(target, FASHION[0]), "ab") as file:
        file.write(b"x")
    found = server.run("fashion-mnist", target)
    assert found.returncode == 1 and "another checksum" in found.stderr, found.stderr


def test_broken_connection(folder):
    server = Server({CIFAR: make_archive(MEMBERS)})
    size = len(server.files[CIFAR])
    server.cut_after = size // 3
    found = server.run("cifar10", folder)
    assert found.returncode == 1 and "run the command again" in found.stderr.lower(), found.stderr
    assert os.listdir(folder) == [CIFAR + ".part"], "no partial file has the name of a whole one"
    assert os.path.getsize(os.path.join(folder, CIFAR + ".part")) == size // 3
    server.cut_after = None
    found = server.run("cifar10", folder)
    assert found.returncode == 0, found.stderr
    assert server.requests[-1] == (CIFAR, f"bytes={size // 3}-"), server.requests
    assert os.listdir(folder) == ["cifar-10-batches-bin"], os.listdir(folder)
    unpacked = os.path.join(folder, "cifar-10-batches-bin")
    assert sorted(os.listdir(unpacked)) == sorted(MEMBERS)
    with tarfile.open(fileobj=io.BytesIO(server.files[CIFAR])) as tar:
        for name in MEMBERS:
            assert content(os.path.join(unpacked, name)) == tar.extractfile(f"cifar-10-batches-bin/{name}").read()
    server.requests.clear()
    assert server.run("cifar10", folder).returncode == 0 and not server.requests


def test_cifar100(folder):
    members = ["train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt"]
    server = Server({"cifar-100-binary.tar.gz": make_archive(members, "cifar-100-binary")})
    found = server.run("cifar100", folder)
    assert found.returncode == 0 and f"cifar100:{folder}" in found.stdout, found.stderr
    assert sorted(os.listdir(os.path.join(folder, "cifar-100-binary"))) == sorted(members)
    found = server.run("cifar100", folder, batch_bytes=None)
    assert found.returncode == 1 and "train.bin has 3073 bytes, expected 153700000" in found.stderr, found.stderr


def test_server_without_ranges(folder):
    server = Server({CIFAR: make_archive(MEMBERS)})
    server.cut_after = 1000
    assert server.run("cifar10", folder).returncode == 1
    server.cut_after, server.ranges = None, False
    found = server.run("cifar10", folder)
    assert found.returncode == 0, found.stderr


def test_complete_part(folder):
    server = Server({CIFAR: make_archive(MEMBERS)})
    with open(os.path.join(folder, CIFAR + ".part"), "wb") as file:
        file.write(server.files[CIFAR])
    assert server.run("cifar10", folder).returncode == 0


def test_wrong_checksum(folder):
    server = Server({CIFAR: make_archive(MEMBERS)})
    found = server.run("cifar10", folder, md5={CIFAR: "0" * 32})
    assert found.returncode == 1 and "expected " + "0" * 32 in found.stderr, found.stderr
    assert os.listdir(folder) == [], "a wrong file is removed"
    found = server.run("cifar10", folder, md5={})
    assert found.returncode == 1 and "c32a1d4ab5d03f1284b67883e8d87530" in found.stderr, found.stderr


def test_incomplete_archive(folder):
    server = Server({CIFAR: make_archive(MEMBERS[:-2] + ["../evil"])})
    found = server.run("cifar10", folder)
    assert found.returncode == 1 and "test_batch.bin" in found.stderr, found.stderr
    assert os.listdir(folder) == [CIFAR], os.listdir(folder)
    assert not os.path.exists(os.path.join(os.path.dirname(folder), "evil"))


def test_damaged_folder(folder):
    server = Server({CIFAR: make_archive(MEMBERS)})
    unpacked = os.path.join(folder, "cifar-10-batches-bin")
    os.mkdir(unpacked)
    for name in MEMBERS:
        with open(os.path.join(unpacked, name), "w", encoding="utf-8") as file:
            file.write("a line\n")
    found = server.run("cifar10", folder, batch_bytes=None)
    assert found.returncode == 1 and "data_batch_1.bin has 7 bytes, expected 30730000" in found.stderr, found.stderr
    for name in MEMBERS:
        os.remove(os.path.join(unpacked, name))
    found = server.run("cifar10", folder)
    assert found.returncode == 1 and "data_batch_1.bin is missing" in found.stderr, found.stderr
    assert not server.requests, "nothing is fetched for a folder that has to be removed first"
    os.rmdir(unpacked)
    found = server.run("cifar10", folder, batch_bytes=None)
    assert found.returncode == 1 and "has 3073 bytes, expected 30730000" in found.stderr, found.stderr
    assert os.listdir(folder) == [CIFAR], os.listdir(folder)


def test_leftovers_of_a_killed_call(folder):
    left = os.path.join(folder, ".unpacking-abc", "cifar-10-batches-bin")
    os.makedirs(left)
    with open(os.path.join(left, MEMBERS[0]), "wb") as file:
        file.write(b"x")
    server = Server({CIFAR: make_archive(MEMBERS)})
    assert server.run("cifar10", folder).returncode == 0
    assert os.listdir(folder) == ["cifar-10-batches-bin"], os.listdir(folder)


def test_answer_that_is_cut(folder):
    server = Server({CIFAR: make_archive(MEMBERS)})
    server.broken_chunk = True
    found = server.run("cifar10", folder)
    assert found.returncode == 1 and "the server's answer cannot be read" in found.stderr, found.stderr
    assert "Traceback" not in found.stderr, found.stderr


def test_errors(folder):
    server = Server({})
    found = server.run("cifar10", folder, md5={})
    assert found.returncode == 1 and "Not Found" in found.stderr, found.stderr
    server.http.shutdown()
    server.http.server_close()
    found = server.run("cifar10", folder, md5={})
    assert found.returncode == 1 and "network" in found.stderr, found.stderr
    for arguments in ([], ["cifar10"], ["mnist", folder], ["cifar10", folder, "x"], ["cifar10", ""]):
        assert server.run(*arguments, md5={}).returncode == 2, arguments
    assert server.run("--help", md5={}).returncode == 0


for name, test in [item for item in globals().items() if item[0].startswith("test_")]:
    with tempfile.TemporaryDirectory() as temporary:
        inner = os.path.join(temporary, "folder")
        os.mkdir(inner)
        test(inner)
    print(f"{name}: passed")
