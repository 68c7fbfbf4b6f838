"""`python -m meshbook install` registers this meshbook with a Jupyter in another environment; `doctor` examines it.

`runs` lists the detached runs, and `end` ends one. `debug` is a terminal for `breakpoint()` in scripts. `worker` waits
for clients that attach to this machine.

Installing is not needed if both share an environment: `pip install meshbook` puts the kernelspec there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager
from jupyter_core.paths import jupyter_data_dir

KERNEL_NAME = "meshbook"
KERNELSPEC = Path(__file__).parent / "kernel" / "kernelspec"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.version:
        print(f"meshbook {metadata.version('meshbook')}")
        return 0
    if args.verb is None:
        parser.print_help()
        return 2
    if args.verb == "doctor":
        return doctor()
    if args.verb == "debug":
        return debug()
    if args.verb == "worker":
        return serve_clients(args.address)
    if args.verb in ("runs", "end"):
        return list_runs() if args.verb == "runs" else end_run(args.run)
    prefix = sys.prefix if args.sys_prefix else args.prefix
    try:
        return install(prefix) if args.verb == "install" else uninstall(prefix)
    except OSError as error:
        print(f"meshbook: cannot {args.verb} the kernelspec: {error}", file=sys.stderr)
        return 1


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m meshbook",
        description="Install or remove the Jupyter kernelspec, check the installation, and manage detached runs.",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="install | uninstall | doctor | runs | end | debug | worker")
    summary = "check the installation and the machine, and suggest fixes"
    verbs.add_parser("doctor", help=summary, description=summary)
    summary = "list the detached runs (%%mesh detach) on this host, with their state"
    verbs.add_parser("runs", help=summary, description=summary)
    summary = "serve breakpoint() of actors in scripts on this terminal, until Ctrl-C"
    verbs.add_parser("debug", help=summary, description=summary)
    summary = "make this machine a host of clients that attach to it (meshbook.hosts.attach), until one shuts it down"
    verbs.add_parser("worker", help=summary, description=summary).add_argument(
        "address", metavar="ADDRESS", help="where to listen, such as tcp://gpu1:22222 or ipc://name"
    )
    summary = "end a detached run and all its processes"
    verbs.add_parser("end", help=summary, description=summary).add_argument(
        "run", metavar="RUN", help="the id of the run, a prefix of the id, or the name of one of its meshes"
    )
    for verb, summary in (
        ("install", "make the kernel visible to Jupyter"),
        ("uninstall", "remove the kernel from Jupyter"),
    ):
        where = verbs.add_parser(verb, help=summary, description=summary).add_mutually_exclusive_group()
        where.add_argument("--user", action="store_true", help="install for the current user (default)")
        where.add_argument("--sys-prefix", action="store_true", help=f"install into this environment, {sys.prefix}")
        where.add_argument("--prefix", metavar="DIR", help="install into DIR/share/jupyter/kernels")
    return parser


def list_runs() -> int:
    """Print a line for each detached run."""
    # Weight: the runtime, which the other verbs do not need.
    from meshbook.runtime.hosts.detached_runs import detached_runs, format_runs

    print(format_runs(detached_runs()) or "no detached runs")
    return 0


def end_run(name: str) -> int:
    """End a detached run; the status is 1 if that fails."""
    # Weight: as above.
    from meshbook.runs import DetachError, end

    try:
        run = end(name)
    except DetachError as error:
        print(f"meshbook: {error}", file=sys.stderr)
        return 1
    print(f"run {run} has ended")
    return 0


def serve_clients(address: str) -> int:
    """Run a worker loop; the status is 1 if it cannot listen at the address."""
    # Weight: as above.
    from meshbook.runtime.hosts.worker_loop import main as run_loop

    try:
        return run_loop(["serve", address])
    except (NotImplementedError, OSError, ValueError) as error:
        print(f"meshbook: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0


def debug() -> int:
    """Read debugger commands until Ctrl-C; the status is 1 if another terminal already does."""
    # Weight: as above.
    from meshbook.runtime.config import current_settings, runtime_root
    from meshbook.runtime.hosts.script_debugger import serve_terminal

    def announce() -> None:
        print("waiting for an actor to call breakpoint(); press Ctrl-C to exit", flush=True)

    try:
        serve_terminal(runtime_root(current_settings()), announce)
    except RuntimeError as error:
        print(f"meshbook: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
    return 0


def doctor() -> int:
    """Examine this installation; the status is 1 if a problem keeps meshes from working."""
    # Weight: its imports, such as torch, which the other verbs do not need.
    from meshbook.magics.doctor import CHECKS
    from meshbook.magics.doctor.finding import examine, format_report, worst_of

    findings = examine(CHECKS)
    print(format_report(findings))
    return int(worst_of(findings) == "problem")


def install(prefix: str | None) -> int:
    """Write the kernelspec under `prefix`, or for the user if it is None."""
    with tempfile.TemporaryDirectory(prefix="meshbook-kernelspec-") as staging:
        source = Path(staging) / KERNEL_NAME
        shutil.copytree(KERNELSPEC, source)
        spec_file = source / "kernel.json"
        spec_file.write_text(json.dumps(bound_to_interpreter(json.loads(spec_file.read_text())), indent=2) + "\n")
        written = KernelSpecManager().install_kernel_spec(
            str(source), kernel_name=KERNEL_NAME, user=prefix is None, prefix=prefix
        )
    print(f"Installed the kernelspec {KERNEL_NAME} in {written}")
    return 0


def bound_to_interpreter(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec with the path of this interpreter.

    Jupyter replaces a bare "python" with the interpreter of its server, which may not have meshbook.
    """
    return {**spec, "argv": [sys.executable, *spec["argv"][1:]]}


def uninstall(prefix: str | None) -> int:
    """Remove the kernelspec that `install` with the same `prefix` writes."""
    base = Path(jupyter_data_dir()) if prefix is None else Path(prefix) / "share" / "jupyter"
    written = base / "kernels" / KERNEL_NAME
    if not written.is_dir():
        print(f"meshbook: no kernelspec in {written}", file=sys.stderr)
        return 1
    shutil.rmtree(written)
    print(f"Removed the kernelspec in {written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
