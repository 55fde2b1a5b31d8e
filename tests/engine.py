"""A docker engine for tests, and all that a build asks of the internet but Debian's and Python's packages.

The engine is unpacked from Debian's packages, not installed, and leaves nothing behind; this machine's is not touched.
"""

import contextlib
import functools
import gzip
import hashlib
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PACKAGES = ("docker.io", "containerd", "runc", "tini", "debootstrap", "libnftables1")
DAEMON = """umount /sys/fs/cgroup/unified 2> /dev/null
exec dockerd --data-root {0}/data --exec-root {0}/exec --pidfile {0}/pid -H unix://{0}/socket \
  --storage-driver overlay2 --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --bridge=none"""
RELEASE = "bookworm"
GOOGLES, ADDRESS = "packages.cloud.google.com", "127.0.0.2"  # of which a server here takes the place
NOWHERE = "--add-host=download.pytorch.org:127.0.0.3"  # the wheel is in the base; nobody answers there, at once
SUITE, PACKAGE = "google-fast-socket", "google-reduction-server"
STARTED, BUILT = 120.0, 3600.0  # seconds; guards against hanging


def why_not() -> str:
    """Why there can be no engine here, "" if there can."""
    missing = [name for name in ("apt-get", "unshare", "gpg", "openssl", "dpkg-deb", "cc") if not shutil.which(name)]
    return "only root on Debian can make a docker engine of its own" if os.geteuid() or missing else ""


@dataclass(frozen=True)
class Engine:
    """A running engine."""

    environ: dict[str, str]

    def run(self, *words: str, cwd: Path | None = None, seconds: float = BUILT) -> "subprocess.CompletedProcess[str]":
        """One command of the client, or of a program that calls it."""
        return subprocess.run(words, cwd=cwd, env=self.environ, capture_output=True, text=True, timeout=seconds)

    def docker(self, *words: str, seconds: float = BUILT) -> str:
        """What it says; it must succeed."""
        done = self.run("docker", *words, seconds=seconds)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


@contextlib.contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """An engine that ends with the block."""
    environ = {**os.environ, "DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain"}
    unpack(folder)
    paths = f"{folder / 'root/usr/bin'}:{folder / 'root/usr/sbin'}:{environ['PATH']}"
    libraries = str(folder / "root/usr/lib/x86_64-linux-gnu")
    own = {"DOCKER_HOST": f"unix://{folder / 'socket'}", "DEBOOTSTRAP_DIR": str(folder / "root/usr/share/debootstrap")}
    ours = environ | {"PATH": paths, **own}
    with (folder / "daemon.log").open("w") as log:
        command = ("unshare", "--mount", "--propagation", "private", "sh", "-c", DAEMON.format(folder))
        daemon = subprocess.Popen(command, env=ours | {"LD_LIBRARY_PATH": libraries}, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + STARTED
        while Engine(ours).run("docker", "version").returncode:
            ends = daemon.poll() is not None or time.monotonic() > deadline
            assert not ends, (folder / "daemon.log").read_text()[-2000:]
            time.sleep(0.5)
        yield Engine(ours)
    finally:
        daemon.terminate()
        try:
            daemon.wait(STARTED)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


def unpack(folder: Path) -> None:
    """The engine's programs, below FOLDER/root."""
    subprocess.run(("apt-get", "download", "-qq", *PACKAGES), cwd=folder, check=True, capture_output=True)
    for package in folder.glob("*.deb"):
        subprocess.run(("dpkg", "-x", package, folder / "root"), check=True)


def make_base(engine: Engine, folder: Path, name: str) -> None:
    """A small Debian under the name of a base image, which trusts whom this machine trusts and has its wheels."""
    system = folder / "system"
    bootstrap = ["debootstrap", "--variant=minbase", "--include=ca-certificates", RELEASE, str(system)]
    done = engine.run(*bootstrap)
    assert done.returncode == 0, done.stdout[-2000:]
    subprocess.run(("sh", "-c", f"tar -C {system} -c . | docker import - plain"), env=engine.environ, check=True)
    shutil.rmtree(system)
    context = folder / "base"
    context.mkdir()
    bundle = Path(ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt")
    (context / "trusted.crt").write_bytes(bundle.read_bytes() + (folder / "google/ca.crt").read_bytes())
    wheels = context / "wheels"
    wheels.mkdir()
    told = subprocess.run(
        (sys.executable, "-m", "pip", "config", "get", "global.find-links"), capture_output=True, text=True
    )
    for place in told.stdout.split():
        for wheel in Path(place).glob("torch-*.whl"):
            shutil.copy(wheel, wheels)
    settings = ("[global]", "cert = /etc/ssl/certs/ca-certificates.crt", "find-links = /wheels", "retries = 0")
    (context / "pip.conf").write_text("\n".join(settings))
    (context / "Dockerfile").write_text(
        "FROM plain\nCOPY pip.conf /etc/pip.conf\nCOPY wheels /wheels\n"
        "COPY trusted.crt /usr/local/share/ca-certificates/trusted.crt\n"
        "RUN cat /usr/local/share/ca-certificates/trusted.crt > /etc/ssl/certs/ca-certificates.crt\n"
    )
    engine.docker("build", "--network=host", f"--tag={name}", str(context))


@contextlib.contextmanager
def googles_packages(folder: Path) -> Iterator[None]:
    """A server in the place of Google's Debian repository: signed, over https, with an empty package."""
    where = folder / "google"
    where.mkdir()
    certificates(where)
    repository(where)
    handler = functools.partial(Quiet, directory=str(where / "www"))
    server = ThreadingHTTPServer((ADDRESS, 443), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(where / "server.crt", where / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, and says nothing."""

    def log_message(self, *_: object) -> None:
        pass


def certificates(where: Path) -> None:
    """A throw-away authority, and its word that the server is Google's."""
    (where / "names").write_text(f"subjectAltName=DNS:{GOOGLES}\n")
    for line in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=throw-away",
        f"req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN={GOOGLES}",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 2 -extfile names",
    ):
        subprocess.run(("openssl", *line.split()), cwd=where, check=True, capture_output=True)


def plugin(path: Path) -> None:
    """What NCCL would load of the package, made of nothing but the names that it exports."""
    names = [f"{half}_v{number}" for half in ("ncclNetPlugin", "ncclCollNetPlugin") for number in (4, 5, 6)]
    path.parent.mkdir(parents=True)
    source = path.with_suffix(".c")
    source.write_text("\n".join(f"const int {name} = 1;" for name in names))
    subprocess.run(("cc", "-shared", "-fPIC", "-nostdlib", "-o", path, source), check=True)
    source.unlink()


def repository(where: Path) -> None:
    """A signed repository with one package, and the key that signs it."""
    control = where / "package/DEBIAN/control"
    control.parent.mkdir(parents=True)
    about = f"Package: {PACKAGE}\nVersion: 1.0\nArchitecture: amd64\nMaintainer: nobody <n@example.com>\n"
    control.write_text(f"{about}Description: a stand-in\n")
    plugin(where / "package/usr/local/lib/libnccl-net.so")
    www = where / "www/apt"
    index = www / f"dists/{SUITE}/main/binary-amd64"
    index.mkdir(parents=True)
    (www / "pool").mkdir()
    package = www / f"pool/{PACKAGE}.deb"
    subprocess.run(("dpkg-deb", "-b", where / "package", package), check=True, capture_output=True)
    data = package.read_bytes()
    rows = f"{control.read_text()}Filename: pool/{package.name}\nSize: {len(data)}\nSHA256: {sha256(data)}\n"
    (index / "Packages").write_text(rows)
    (index / "Packages.gz").write_bytes(gzip.compress(rows.encode()))
    suite = www / f"dists/{SUITE}"
    files = sorted(index.iterdir())
    sums = "".join(f" {sha256(file.read_bytes())} {file.stat().st_size} {file.relative_to(suite)}\n" for file in files)
    text = f"Suite: {SUITE}\nCodename: {SUITE}\nArchitectures: amd64\nComponents: main\nSHA256:\n{sums}"
    home = where / "keys"
    home.mkdir(mode=0o700)
    gpg = ("gpg", "--homedir", str(home), "--batch", "--yes", "--pinentry-mode", "loopback", "--passphrase", "")
    subprocess.run((*gpg, "--quick-gen-key", "stand-in", "rsa2048", "sign", "1d"), check=True, capture_output=True)
    (www / "doc").mkdir()
    subprocess.run((*gpg, "--armor", "--output", www / "doc/apt-key.gpg", "--export"), check=True, capture_output=True)
    signed = subprocess.run((*gpg, "--clearsign"), input=text.encode(), check=True, capture_output=True)
    (suite / "InRelease").write_bytes(signed.stdout)
    subprocess.run(("gpgconf", "--homedir", home, "--kill", "gpg-agent"), check=True)  # which gpg has left running


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
