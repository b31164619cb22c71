"""Programs of another processor, run by QEMU's user mode emulation in a root directory of their own.

The kernel starts QEMU for a program by the rule that is registered with binfmt_misc. Namespaces of users have
rules of their own from Linux 6.7 on. So nobody has to be root, and the system has no rule of ours.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Of a program for aarch64, as QEMU's own rules have it: what its ELF header has at these bits.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
# O, C, P: how it gets the program. F: it is opened now, so that the root needs no QEMU in it.
FLAGS = "OPF"
TOOLS = {"unshare": "util-linux", "ip": "iproute2"}
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
# For steps that ask a registry.
FETCHING = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl/certs/ca-certificates.crt")
SHARED_MEMORY = "4g"
RULES = "/proc/sys/fs/binfmt_misc"


@dataclass(frozen=True)
class EmulatedRoot:
    """A root directory with programs of another processor, and the program that runs them."""

    path: Path
    qemu: Path

    def script(self, command: Sequence[str], *, has_network: bool) -> str:
        """Return what a shell in namespaces of its own has to do to become the command."""
        root = shlex.quote(str(self.path))
        rule = f":emulated:M::{MAGIC}:{MASK}:{self.qemu}:{FLAGS}"
        steps = [
            "mount --make-rprivate /",
            f"mount -t binfmt_misc binfmt_misc {RULES}",
            f"echo {shlex.quote(rule)} > {RULES}/register",
            f"mount --rbind /dev {root}/dev",
            f"mount -t tmpfs -o mode=1777,size={SHARED_MEMORY} tmpfs {root}/dev/shm",
            f"mount -t proc proc {root}/proc",
        ]
        if not has_network:
            steps.append("ip link set lo up")
        return " && ".join([*steps, f"exec chroot {root} {shlex.join(command)}"])

    def argv(self, command: Sequence[str], *, has_network: bool = False) -> list[str]:
        """Return the command as this host runs it. Its processes end with it."""
        namespaces = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--ipc"]
        network = [] if has_network else ["--net"]
        script = self.script(command, has_network=has_network)
        return ["unshare", *namespaces, *network, "bash", "-ec", script]

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        has_network: bool = False,
        timeout_s: float | None = None,
    ) -> str:
        """Run a command in the root directory. Return what it printed; it has to end well."""
        done = subprocess.run(
            self.argv(command, has_network=has_network),
            env={"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout
