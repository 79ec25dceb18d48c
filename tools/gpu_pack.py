# SPDX-License-Identifier: Apache-2.0
"""What tools/gpu_check brings to a GPU machine without Debian's packages: headers, libraries, and stripped programs in one archive."""
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

from gpu_programs import output_of

PACKAGES = ("libgtest-dev", "googletest", "libbenchmark-dev", "libbenchmark1*", "libeigen3-dev", "nlohmann-json3-dev", "libcli11-dev", "libfmt-dev", "libfmt[0-9]*", "librandom123-dev",
            "libsodium-dev", "libsodium[0-9]*", "libxxhash-dev", "libxxhash0", "zlib1g-dev", "zlib1g", "libprotozero-dev", "libgomp1")
PACKED = re.compile(r"^(/usr/include/|/usr/lib/.*(\.a|\.so[.0-9]*)$|/usr/(lib|share)/.*[Cc]make|/lib/.*\.so[.0-9]*$|/usr/share/pkgconfig|/usr/src/googletest)")
HEADERS = ("gtest/gtest.h", "benchmark/benchmark.h", "eigen3/Eigen/Core", "nlohmann/json.hpp", "CLI/CLI.hpp", "fmt/core.h", "Random123/philox.h", "sodium.h", "xxhash.h", "zlib.h",
           "protozero/pbf_writer.hpp", "boost/crc.hpp")
LIMIT_MB = 60
ARCHIVE = "programs.tar.xz"
# All programs contain the same device code, 20 MB of it: the window is larger than a program, so that it is stored once.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 4, "dict_size": 128 << 20}]
SOURCE_FOLDERS = ("bench", "cmake", "data", "kernels", "nn", "runtime", "tests", "tools/program")
SOURCES = (".cpp", ".h", ".cu", ".cuh", ".cmake", ".in", ".html", ".md", "CMakeLists.txt")


def digest_of_sources(root):
    """Of what programs are built from. Unlike the commit, it is there without git, and changes that are not committed change it."""
    digest = hashlib.sha256()
    paths = ["CMakeLists.txt"]
    for folder in SOURCE_FOLDERS:
        for base, folders, names in os.walk(os.path.join(root, folder)):
            folders[:] = [name for name in folders if name not in ("__pycache__", "results")]
            paths += [os.path.relpath(os.path.join(base, name), root) for name in names if name.endswith(SOURCES)]
    for path in sorted(paths):
        with open(os.path.join(root, path), "rb") as file:
            digest.update(path.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


# What is on every machine. The rest comes with the pack or, for GPUs, with the driver and PyTorch's wheels.
SYSTEM_PACKAGES = ("libc6", "libgcc-s1", "libstdc++6")
DRIVER_STUB = "/usr/local/cuda/lib64/stubs/libcuda.so"


def read_word(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return None


def targets_of(build):
    """Names of the targets of a build folder; None if it has not been configured."""
    if not os.path.exists(os.path.join(build, "CMakeCache.txt")):
        return None
    text = output_of(["cmake", "--build", build, "--target", "help"], r"(?s)(.*)", 30)
    # ninja: "name: phony"; make: "... name"
    return set(re.findall(r"(?m)^(?:\.\.\. )?([\w.+-]+)(?:: .*| \(.*\))?$", text)) if text else None


def open_pack(folder, root, programs):
    """Unpacks the programs into a folder. (That folder, commit), or (None, why they are not used); (None, None) without a pack of programs."""
    archive = os.path.join(folder, ARCHIVE)
    if not os.path.exists(archive):
        return None, None
    digest = read_word(os.path.join(folder, "sources"))
    if digest != digest_of_sources(root):
        return None, "they were built from other sources than this tree's"
    if read_word(os.path.join(programs, "sources")) != digest:
        shutil.rmtree(programs, ignore_errors=True)
        try:
            with tarfile.open(archive, "r:xz") as packed:
                packed.extractall(programs, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        except (OSError, tarfile.TarError, lzma.LZMAError) as problem:
            return None, f"{os.path.basename(archive)}: {problem}"
        shutil.copy2(os.path.join(folder, "sources"), programs)  # written last: the folder is complete
    return programs, read_word(os.path.join(folder, "commit"))


def link_sonames(folder):
    """Gives every library in the folder the name under which programs ask for it. Installing a package makes that link; not all packages contain it."""
    for base, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(base, name)
            if os.path.islink(path) or not re.search(r"\.so[.0-9]*$", name):
                continue
            soname = output_of(["readelf", "-d", path], r"\(SONAME\).*\[([^\]/]+)\]")
            if soname and not os.path.lexists(os.path.join(base, soname)):
                os.symlink(name, os.path.join(base, soname))


def copy_packages(folder):
    installed = subprocess.run(["dpkg-query", "-W", "-f", "${Package}\n", *PACKAGES], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout.split()
    for package in installed:
        listing = subprocess.run(["dpkg", "-L", package], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        for path in listing.stdout.split("\n"):
            if not PACKED.match(path) or (os.path.isdir(path) and not os.path.islink(path)) or not os.path.exists(path):
                continue
            target = folder + (path if path.startswith("/usr") else "/usr" + path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)  # a library's names are links to one file
    link_sonames(folder)
    # BOOST.CRC's headers, which the program needs: those that the compiler reads, not all of Boost.
    listed = subprocess.run(["c++", "-std=c++20", "-M", "-x", "c++", "-"], input="#include <boost/crc.hpp>\n", stdout=subprocess.PIPE, text=True, check=False).stdout
    for path in re.findall(r"/usr/include/boost/\S+", listed):
        target = folder + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(path, target)
    for header in HEADERS:
        if not any(os.path.exists(os.path.join(folder, "usr", "include", *middle, header)) for middle in ((), (f"{os.uname().machine}-linux-gnu",))):
            sys.exit(f"gpu_check: {header} is not on this machine; run tools/setup first")


def write_archive(path, build, programs):
    """The stripped programs, the largest last and beside each other."""
    stripped = os.path.join(build, "stripped")
    shutil.rmtree(stripped, ignore_errors=True)
    os.makedirs(stripped)
    for name in programs:
        subprocess.run(["strip", "-o", os.path.join(stripped, name), os.path.join(build, "bin", name)], check=True)
    with lzma.open(path, "wb", filters=FILTERS) as file, tarfile.open(fileobj=file, mode="w|") as archive:
        for name in sorted(programs, key=lambda name: os.path.getsize(os.path.join(stripped, name))):
            archive.add(os.path.join(stripped, name), arcname=name)
    needed = set()
    for name in programs:
        for library, found in re.findall(r"(\S+) => (\S+)", output_of(["ldd", os.path.join(stripped, name)], r"(?s)(.*)") or ""):
            if not re.match(r"(libc|libm|libdl|librt|libpthread)\.so", library) and not os.path.exists(os.path.join(os.path.dirname(path), "usr" + re.sub("^/usr", "", found))):
                needed.add(library)
    return sorted(needed)


def wheel_folders():
    """nvidia/*/lib of PyTorch's wheels, which the dynamic linker does not find."""
    wheels = output_of([sys.executable, "-c", "import nvidia; print(list(nvidia.__path__)[0])"], r"^(/.*)")
    folders = [os.path.join(wheels, name, "lib") for name in sorted(os.listdir(wheels))] if wheels else []
    return [folder for folder in folders if os.path.isdir(folder)]


def link_or_copy(source, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copy2(source, target)


def fill_root(root, folder, wheels):
    """The pack with its programs unpacked, SYSTEM_PACKAGES, a stub of the driver, and the wheels. Returns LD_LIBRARY_PATH."""
    for name in ("lib", "lib64"):
        os.makedirs(os.path.join(root, "usr", name))
        os.symlink("usr/" + name, os.path.join(root, name))
    listing = subprocess.run(["dpkg", "-L", *SYSTEM_PACKAGES], stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")
    for path in listing:
        if re.search(r"/lib.*\.so[.0-9]*$", path) and os.path.isfile(path) and "gconv" not in path:
            target = root + (path if path.startswith("/usr") else "/usr" + path)
            if not os.path.lexists(target):
                link_or_copy(path, target)
    libraries = [f"/pack/usr/lib/{os.uname().machine}-linux-gnu"]
    for base, _, names in os.walk(folder + "/usr/lib"):
        for name in names:
            if re.search(r"\.so[.0-9]*$", name):
                link_or_copy(os.path.join(base, name), os.path.join(root, "pack", os.path.relpath(base, folder), name))
    if os.path.exists(DRIVER_STUB):
        link_or_copy(DRIVER_STUB, os.path.join(root, "usr", "lib", "libcuda.so.1"))
    for wheel in wheels:
        libraries.append("/wheels/" + os.path.basename(os.path.dirname(wheel)))
        for name in os.listdir(wheel):
            if os.path.isfile(os.path.join(wheel, name)):
                link_or_copy(os.path.join(wheel, name), root + libraries[-1] + "/" + name)
    with tarfile.open(os.path.join(folder, ARCHIVE), "r:xz") as packed:
        packed.extractall(os.path.join(root, "programs"), **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return ":".join(libraries)


def verify_pack(folder, wheels):
    """Why the packed programs do not start on a machine that has nothing else; empty if they do."""
    with tempfile.TemporaryDirectory() as root:
        path = fill_root(root, folder, wheels)
        enter = [shutil.which("chroot"), root] if os.geteuid() == 0 else [shutil.which("unshare"), "--map-root-user", "--root", root]
        wrong = []
        for name in sorted(os.listdir(os.path.join(root, "programs"))):
            command = [*enter, f"/programs/{name}", "--version" if name == "vitrine" else "--benchmark_list_tests=true" if name.startswith("bench_") else "--gtest_list_tests"]
            run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={"LD_LIBRARY_PATH": path, "PATH": ""}, check=False)
            if run.returncode != 0:
                wrong.append(f"{name}: " + " ".join(run.stdout.split("\n")[:2]))
        return wrong


def make_pack(root, folder, programs):
    """Headers, libraries and stripped programs, for a machine with CUDA but without Debian's packages."""
    shutil.rmtree(folder, ignore_errors=True)
    copy_packages(folder)
    build = os.path.join(root, "build", "gpu_programs")
    # The programs run in the root of another copy of the tree, where they look for their data.
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DVITRINE_CUDA=ON", "-DVITRINE_MPI=OFF", "-DVITRINE_ONEDNN=OFF", "-DVITRINE_JPEG=OFF", "-DVITRINE_PNG=OFF", "-DVITRINE_CHECK_ORDER=OFF",
               "-DVITRINE_TEST_ROOT=.", f"-DCMAKE_CUDA_ARCHITECTURES={os.environ.get('CUDAARCHS', '90')}"]
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    if subprocess.run(["cmake", "-S", root, "-B", build, *generator, *options], stdout=subprocess.DEVNULL, check=False).returncode != 0:
        sys.exit("gpu_check: configuring failed")
    targets = targets_of(build)
    if targets is None:
        sys.exit("gpu_check: cmake does not list the targets of " + build)
    built = [name for name in programs if name in targets]
    jobs = output_of([os.path.join(root, "tools", "build_jobs")], r"(\d+)") or "1"
    digest = digest_of_sources(root)
    if subprocess.run(["cmake", "--build", build, "-j", jobs, "--target", *built], stdout=subprocess.DEVNULL, check=False).returncode != 0:
        sys.exit("gpu_check: building failed: cmake --build " + build + " shows why")
    needed = write_archive(os.path.join(folder, ARCHIVE), build, built)
    dirty = output_of(["git", "-C", root, "status", "--porcelain"], r"(\S)")
    for name, text in (("commit", output_of(["git", "-C", root, "rev-parse", "HEAD"], r"^([0-9a-f]{40})") or "unknown"), ("sources", digest)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text + "\n")
    size = sum(os.lstat(os.path.join(base, name)).st_size for base, _, names in os.walk(folder) for name in names) / 1e6
    print(f"== pack: {os.path.relpath(folder, root)}, {size:.1f} MB" + (" (of a tree with changes that are not committed)" if dirty else ""))
    left_out = [name for name in programs if name not in targets]
    if left_out:
        print("left out, because this build does not have them: " + ", ".join(left_out))
    print("expected on the other machine: " + ", ".join(needed))
    if size > LIMIT_MB:
        sys.exit(f"gpu_check: the folder has more than {LIMIT_MB} MB")
    wheels = wheel_folders()
    wrong = verify_pack(folder, wheels)
    if wrong:
        sys.exit("gpu_check: in a root with only the C library and the pack, these do not start:\n" + "\n".join(wrong))
    print(f"all programs start in a root with only the C library, {'the driver stub, ' if os.path.exists(DRIVER_STUB) else ''}{len(wheels)} wheels' libraries and the pack")
    return 0
