"""The steps of a Containerfile, run in a root directory that has nothing of this host but /usr, read-only.

There is no registry here to get the image from that it begins with, so this Debian and a Python of the same
version stand in for it. Each step has namespaces of its own, as in a container: mounts, processes, network,
host name. Needs root.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# What programs of the image know about the host, and where certificates are.
ETC = ("debian_version", "group", "gshadow", "ld.so.conf", "ld.so.conf.d", "login.defs", "nsswitch.conf")
ETC += ("os-release", "passwd", "shadow", "ssl")
# For steps that fetch from a registry alone: an image's own.
FETCHING = ("resolv.conf", "pip.conf")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHARED_MEMORY = "64m"
"""The size of /dev/shm that docker, podman and Kubernetes give by default."""
_INSTRUCTION = re.compile(r"([A-Z]+)\s+(.*)")
_ARGUMENT = re.compile(r"\$\{(\w+)\}")


@dataclass
class Containerfile:
    """Its instructions in their order, with build arguments filled in."""

    instructions: list[tuple[str, str]]

    @classmethod
    def parse(cls, text: str, **build_arguments: str) -> Containerfile:
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        joined = re.sub(r"\\\n", " ", "\n".join(lines))
        arguments: dict[str, str] = {}
        found = []
        for line in filter(str.strip, joined.splitlines()):
            match = _INSTRUCTION.fullmatch(line.strip())
            assert match, f"{line!r} is not an instruction"
            name, rest = match[1], _ARGUMENT.sub(lambda one: arguments.get(one[1], one[0]), match[2])
            if name == "ARG":
                key, _, value = rest.partition("=")
                arguments[key] = build_arguments.get(key, value)
            found.append((name, rest))
        return cls(found)

    def last(self, name: str) -> str:
        """Return the last instruction of a name."""
        return [rest for one, rest in self.instructions if one == name][-1]

    def words(self, name: str) -> list[str]:
        """Return the words of an instruction in its JSON form; those before it are options."""
        rest = self.last(name)
        found = json.loads(rest[rest.index("[") :])
        assert isinstance(found, list)
        return [str(word) for word in found]


@dataclass
class EmptyRoot:
    """A root directory, and what runs in it. `python`: the prefix of the image's Python."""

    path: Path
    python: Path
    ports: list[int] = field(default_factory=list)

    def make(self) -> None:
        for name in ("dev", "etc", "home", "proc", "run", "sys", "tmp", "usr", "var/lib"):
            (self.path / name).mkdir(parents=True)
        for name in ("bin", "lib", "lib64", "sbin"):
            (self.path / name).symlink_to(f"usr/{name}")
        (self.path / "tmp").chmod(0o1777)
        for name in ETC:
            self._copy_etc(name)
        (self.path / "etc/hosts").write_text("127.0.0.1 localhost\n")
        self.run(["/usr/sbin/ldconfig"])

    def _copy_etc(self, name: str) -> None:
        found = Path("/etc", name)
        if found.is_dir():
            shutil.copytree(found, self.path / "etc" / name, symlinks=True)
        elif found.exists():
            shutil.copy(found, self.path / "etc" / name)

    def build(self, containerfile: Containerfile, context: Path, environment: Mapping[str, str]) -> None:
        """Run the steps that make an image: RUN with this environment, COPY from the context."""
        for name in FETCHING:
            self._copy_etc(name)
        for name, rest in containerfile.instructions:
            if name == "RUN":
                self.run(["/bin/sh", "-ec", rest], environment=environment, has_network=True)
            elif name == "COPY":
                *sources, target = shlex.split(rest)
                self._copy(context, sources, target)
        for name in FETCHING:
            (self.path / "etc" / name).unlink(missing_ok=True)

    def _copy(self, context: Path, sources: Sequence[str], target: str) -> None:
        into = self.path / target.lstrip("/")
        (into if target.endswith("/") else into.parent).mkdir(parents=True, exist_ok=True)
        for source in sources:
            found = sorted(context.glob(source))
            assert found, f"COPY {source}: there is no such file"
            for file in found:
                shutil.copy(file, into)

    def script(self, command: Sequence[str], *, user: str = "0:0", read_only: bool = False) -> str:
        """Return what a shell in namespaces of its own has to do to become the command."""
        root = shlex.quote(str(self.path))
        steps = [
            "mount --make-rprivate /",
            f"mount --rbind {root} {root}",
            f"mount --bind /usr {root}/usr",
            f"mount -o remount,bind,ro {root}/usr",
            f"mount --bind {shlex.quote(str(self.python))} {root}/usr/local",
            f"mount -o remount,bind,ro {root}/usr/local",
            f"mount -t tmpfs -o mode=0755 tmpfs {root}/dev",
            f"mkdir {root}/dev/shm",
            f"mount -t tmpfs -o mode=1777,size={SHARED_MEMORY} tmpfs {root}/dev/shm",
            *(f"touch {root}/dev/{name} && mount --bind /dev/{name} {root}/dev/{name}" for name in DEVICES),
            f"mount -t proc proc {root}/proc",
        ]
        if read_only:
            volume = f"{root}/var/lib/mpbroker"
            steps += [f"mount --bind {volume} {volume}", f"mount -o remount,bind,ro {root}"]
            steps += [f"mount -t sysfs -o ro sysfs {root}/sys", "ip link set lo up"]
        words = ["chroot", f"--userspec={user}", str(self.path), *command]
        return " && ".join([*steps, f"exec {shlex.join(words)}"])

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        has_network: bool = False,
    ) -> str:
        """Run a command as root in the root directory. Return what it printed."""
        namespaces = ["--mount", "--pid", "--fork", "--ipc", "--uts"] + ([] if has_network else ["--net"])
        done = subprocess.run(
            ["unshare", *namespaces, "/bin/sh", "-ec", self.script(command)],
            env={"PATH": PATH, "HOME": "/tmp", **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def start(self, command: Sequence[str], user: str, output: Path) -> Container:
        """Start a command as process 1, on a read-only root but for its volume, without any network."""
        with output.open("wb") as file:
            unshared = subprocess.Popen(
                [
                    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "--net"),
                    *("/bin/sh", "-ec", self.script(command, user=user, read_only=True)),
                ],
                env={"PATH": PATH, "HOME": "/var/lib/mpbroker"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        return Container(self, unshared, user, output)


DEVICES = ("null", "zero", "random", "urandom")


@dataclass
class Container:
    """A started command. `unshared` is the program that made the namespaces, and waits for it."""

    root: EmptyRoot
    unshared: subprocess.Popen[bytes]
    user: str
    output_path: Path

    def output(self) -> str:
        return self.output_path.read_text()

    @property
    def pid(self) -> int:
        """Return the process id of process 1, as the host has it; 0: there is none yet, or no more."""
        children = Path(f"/proc/{self.unshared.pid}/task/{self.unshared.pid}/children")
        try:
            return int(children.read_text().split()[0])
        except (OSError, IndexError):
            return 0

    def run(self, command: Sequence[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command beside it, in its namespaces, as its user, as `podman exec` does."""
        uid, gid = self.user.split(":")
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--net", "--ipc", "--uts", "--root"]
        enter += ["--wdns=/", f"--setuid={uid}", f"--setgid={gid}"]
        return subprocess.run(
            [*enter, *command],
            env={"PATH": PATH, "HOME": "/var/lib/mpbroker"},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    def stop(self, timeout_s: float) -> int:
        """Send SIGTERM to process 1, as `podman stop` does. Return its exit status."""
        os.kill(self.pid, 15)
        return self.unshared.wait(timeout_s)

    def kill(self) -> None:
        if self.unshared.poll() is None:
            self.unshared.kill()
            self.unshared.wait()
